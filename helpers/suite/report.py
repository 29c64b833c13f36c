"""index.html: the verdict, the checks and every executed notebook in one file that opens offline.

nbconvert's templates load require.js, MathJax, mermaid and the widget manager from the network and drop alt texts, so the
page is made here. Its content security policy forbids scripts and every address: whatever a checkpoint's names smuggle into
an output, the page runs nothing and asks nobody.
"""

import base64
import html
import re
from collections.abc import Iterable, Mapping

import mistune
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from helpers.findings import LEGEND
from helpers.suite.checks import COLOURS, STATES

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
WIDGET = "application/vnd.jupyter.widget-view+json"

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 0 1rem 4rem }
h1, h2, h3, h4, h5 { line-height: 1.25 }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem; border-bottom: 1px solid #8884 }
caption { text-align: left; font-weight: 600 }
pre { overflow-x: auto; padding: .6rem; background: #8881; border-radius: 4px }
code { overflow-wrap: anywhere }
figure { margin: .5rem 0 }
img { max-width: 100%; height: auto; background: white }
nav ul { columns: 2; padding-left: 1.2rem }
section { border-top: 2px solid #8886; margin-top: 3rem }
.outcome { font-size: 1.6rem; font-weight: 700 }
.code summary { color: GrayText; cursor: pointer; font-size: .85rem }
"""


class _Renderer(mistune.HTMLRenderer):
    """Markdown of a notebook inside a larger page: headings one level down, links to other notebooks become links to sections."""

    def __init__(self):
        super().__init__(escape=False)

    def heading(self, text: str, level: int, **attrs) -> str:
        return f"<h{min(level + 1, 6)}>{text}</h{min(level + 1, 6)}>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        notebook = re.fullmatch(r"(?:\./)?(\w+)\.ipynb(?:#.*)?", url)
        return super().link(text, f"#{notebook[1]}" if notebook else url, title)


_markdown = mistune.create_markdown(renderer=_Renderer(), plugins=["table", "strikethrough"])
_code = HtmlFormatter(nowrap=True)


def section(notebook: NotebookNode) -> str:
    """The cells of an executed notebook: prose and outputs as they are, code folded above what it made."""
    return "\n".join(_markdown(cell.source) if cell.cell_type == "markdown" else _code_cell(cell) for cell in notebook.cells)


def _code_cell(cell: NotebookNode) -> str:
    if cell.cell_type != "code" or not cell.source.strip():
        return ""
    source = highlight(cell.source, PythonLexer(), _code)
    folded = f'<details class="code"><summary>code</summary><pre><code>{source}</code></pre></details>'
    return folded + "".join(map(_output, cell.outputs))


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return _pre(output.text)
    if output.output_type == "error":
        return _pre("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
    data = output.data
    if WIDGET in data:
        return ""  # it needs a kernel; what it shows by default stands beside it
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    if "image/png" in data:
        return _image("image/png", data["image/png"], output)
    if "image/svg+xml" in data:
        return _image("image/svg+xml", base64.b64encode(data["image/svg+xml"].encode()).decode(), output)
    if "text/markdown" in data:
        return _markdown(data["text/markdown"])
    return _pre(data.get("text/plain", ""))


def _image(kind: str, encoded: str, output: NotebookNode) -> str:
    alt = output.metadata.get(kind, {}).get("alt") or output.data.get("text/plain", "")
    return f'<img src="data:{kind};base64,{encoded.strip()}" alt="{html.escape(alt)}">'


def _pre(text: str) -> str:
    return f"<pre>{html.escape(ANSI.sub('', text))}</pre>" if text.strip() else ""


def page(result: Mapping, environment: Mapping, sections: Mapping[str, str]) -> str:
    """The whole document. result: as in result.json; sections: notebook name -> HTML of ``section``."""
    notebooks = result["notebooks"]
    verdict = result["verdict"]
    title = f"{verdict['outcome'].replace('_', ' ')}: " if verdict else ""
    checkpoint = next((notebook["parameters"]["checkpoint"] for notebook in notebooks if "checkpoint" in notebook["parameters"]), "")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{html.escape(title + checkpoint)} NVFP4 MoE validation</title>",
        f"<style>{STYLE}{HtmlFormatter().get_style_defs('.code')}</style></head><body><main>",
        f"<h1>NVFP4 MoE validation{f': {html.escape(checkpoint)}' if checkpoint else ''}</h1>",
        _verdict(verdict) if verdict else "<p>No notebook of this run gave a verdict.</p>",
        _table("Asked", ("parameter", "value"), _asked(notebooks)),
        _table("Notebooks", ("notebook", "state", "checks", "seconds"), [_notebook_row(notebook) for notebook in notebooks]),
        _unusual(notebooks),
        _table("Environment", ("what", "is"), _environment(environment)),
        *(
            f'<section id="{name}" aria-label="{name}"><p><code>{name}.ipynb</code></p>{body or "<p>It was not executed.</p>"}</section>'
            for name, body in sections.items()
        ),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _verdict(verdict: Mapping) -> str:
    colour = {"serves": COLOURS["pass"], "unknown": COLOURS["known_bad"]}.get(verdict["outcome"], COLOURS["fail"])
    outcome = html.escape(verdict["outcome"].replace("_", " "))
    stages = [(stage, state.replace("_", " ")) for stage, state in verdict["stages"].items()]
    fields = ("severity", "stage", "id", "observed", "expected", "why", "source", "remedy")
    findings = [[str(finding[field]) for field in fields] for finding in verdict["findings"]]
    return (
        f'<p class="outcome" style="color:{colour}">{outcome}</p><p>{html.escape(LEGEND[verdict["outcome"]])}</p>'
        + _table("Stages of a server start", ("stage", "state"), stages)
        + (_table("Findings", fields, findings) if findings else "")
    )


def _asked(notebooks: Iterable[Mapping]) -> list[tuple[str, str]]:
    asked = {name: str(value) for notebook in notebooks for name, value in notebook["parameters"].items()}
    return [(name, value or "(not given)") for name, value in asked.items()]


def _notebook_row(notebook: Mapping) -> tuple:
    name = html.escape(notebook["name"])
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in notebook["counts"].items() if count)
    state = _state(notebook["state"]) + (f"<br>{html.escape(notebook['reason'])}" if notebook["reason"] else "")
    return _Html(f'<a href="#{name}">{name}</a>'), _Html(state), counts or "none", f"{notebook['seconds']:.1f}"


def _unusual(notebooks: Iterable[Mapping]) -> str:
    rows = [
        (notebook["name"], _Html(_state(check["state"])), check["id"], check["why"], check["remedy"] or check["reference"])
        for notebook in notebooks
        for check in sorted(notebook["checks"], key=lambda check: STATES.index(check["state"]))
        if check["state"] != "pass"
    ]
    if not rows:
        return "<p>Every check passed.</p>"
    return _table("Checks that did not simply pass", ("notebook", "state", "check", "why", "remedy or reference"), rows)


def _environment(environment: Mapping) -> list[tuple[str, str]]:
    rows = [(name, str(environment[name])) for name in ("python", "platform", "cpus")]
    rows += [("GPU", f"{gpu['name']}, driver {gpu['driver_version']}, {gpu['memory.total']}") for gpu in environment["gpus"]]
    return rows + [(name, version or "not installed") for name, version in environment["packages"].items()]


class _Html(str):
    """A cell that is HTML already."""


def _state(state: str) -> str:
    return f'<strong style="color:{COLOURS.get(state, COLOURS["fail"])}">{html.escape(state.replace("_", " "))}</strong>'


def _table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def cell(value: str) -> str:
        return f"<td>{value if isinstance(value, _Html) else html.escape(value)}</td>"

    head = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
