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
from helpers.view.markup import visible
from helpers.view.palette import STAGE_MARKS

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
WIDGET = "application/vnd.jupyter.widget-view+json"

BANDS = {"serves": "#1b6e45", "off_path": "#8a5a00", "unknown": "#5a5a5a"}  # white on them is readable; the rest is red
RED = "#a81e24"

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 0 1rem 4rem }
h1, h2, h3, h4, h5 { line-height: 1.25 }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem; border-bottom: 1px solid #8884 }
caption { text-align: left; font-weight: 600 }
pre { overflow-x: auto; padding: .6rem; background: #8881; border-radius: 4px }
code { overflow-wrap: anywhere }
figure { margin: .5rem 0 }
img { max-width: 100%; height: auto; background: white }
nav { position: sticky; top: 0; background: Canvas; border-bottom: 1px solid #8886; padding: .3rem 0; z-index: 1; font-size: .9rem }
nav a { margin-right: 1rem; white-space: nowrap }
:target { scroll-margin-top: 3rem }
.band { color: white; border-radius: 6px; padding: .8rem 1.2rem; margin: 1rem 0 }
.band h1 { font-size: 1.1rem; font-weight: 500; margin: 0; overflow-wrap: anywhere }
.band p { margin: 0 }
.outcome { font-size: 2rem; font-weight: 700; line-height: 1.2 }
.strip { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; padding: 0 }
.strip li { flex: 1 1 8rem; border: 1px solid #8886; border-radius: 4px; padding: .3rem .7rem }
.strip b { display: block }
.failed { outline: 2px solid #c1272d }
.default { color: GrayText }
.asked { padding: 0; list-style: none }
.asked li { display: inline-block; margin-right: 1.2rem }
.finding { border-left: 4px solid #8886; padding: .1rem 1rem; margin: .8rem 0 }
.finding p, .finding dl { margin: .2rem 0 }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .1rem 1rem }
dt { color: GrayText }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-line }
.cells { border-top: 2px solid #8886; padding-top: .6rem; margin-top: 1rem }
.cells > details > summary { font-size: 1.2rem; font-weight: 600; cursor: pointer }
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
    question = _question(result)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{html.escape(question)}</title>",
        f"<style>{STYLE}{HtmlFormatter().get_style_defs('.code')}</style></head><body>",
        _band(question, verdict),
        _contents(sections),
        "<main>",
        _strip(verdict["stages"]) if verdict else "",
        _asked(notebooks),
        _findings(verdict["findings"] if verdict else []),
        _table("Notebooks", ("notebook", "state", "checks", "seconds"), [_notebook_row(notebook) for notebook in notebooks]),
        _unusual(notebooks),
        *(_cells(notebook, sections.get(notebook["name"], "")) for notebook in notebooks),
        _table("Environment", ("what", "is"), _environment(environment)),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _question(result: Mapping) -> str:
    """The question in words, e.g. ``qwen3.5-moe-mixed on SGLang 0.5.23, runner auto → flashinfer_trtllm, B200``."""
    asked, resolved = result["question"], result["resolved"]
    if asked is None:
        return "NVFP4 MoE validation"
    runner = asked["runner"] if asked["runner"] == resolved["runner"] else f"{asked['runner']} → {resolved['runner']}"
    parts = [f"{asked['checkpoint']} on SGLang {asked['sglang']}", f"runner {runner}"]
    parts += [f"{name} {asked[name]}" for name in ("a2a", "quantization") if asked[name] not in ("none", None)]
    parts += [f"{name} {asked[name]}" for name in ("tp", "ep", "dp") if asked[name] != 1]
    return ", ".join([*parts, asked["gpu"]])


def _band(question: str, verdict: Mapping | None) -> str:
    if verdict is None:
        outcome, meaning, missing = "no verdict", "no notebook of this run gave one", []
    else:
        outcome, meaning = verdict["outcome"], LEGEND[verdict["outcome"]]
        missing = [stage for stage, state in verdict["stages"].items() if state == "not_examined"]
    colour = BANDS.get(outcome, BANDS["unknown"] if verdict is None else RED)
    return (
        f'<header class="band" style="background:{colour}"><h1>{html.escape(question)}</h1>'
        f'<p class="outcome">{outcome.replace("_", " ")}</p><p>{html.escape(meaning)}</p>'
        + (f"<p>Not examined: {', '.join(missing)}</p>" if missing else "")
        + "</header>"
    )


def _contents(sections: Mapping[str, str]) -> str:
    links = [("findings", "findings"), ("notebooks", "notebooks"), ("checks", "checks"), *((name, name) for name in sections)]
    links += [("environment", "environment")]
    return '<nav aria-label="Contents">' + "".join(f'<a href="#{target}">{text}</a>' for target, text in links) + "</nav>"


def _strip(stages: Mapping[str, str]) -> str:
    marks = {stage: STAGE_MARKS[state] for stage, state in stages.items()}
    cells = (
        f'<li class="{stages[stage]}"><b>{stage}</b><span aria-hidden="true">{mark.symbol}</span> {mark.word}</li>'
        for stage, mark in marks.items()
    )
    return f'<ol class="strip" aria-label="Stages of a server start">{"".join(cells)}</ol>'


def _asked(notebooks: Iterable[Mapping]) -> str:
    """Every parameter of the run; those that differ from the notebooks' defaults first."""
    values = {name: value for notebook in notebooks for name, value in notebook["parameters"].items()}
    given = {name for notebook in notebooks for name in notebook["given"]}
    items = []
    for name in sorted(values, key=lambda name: name not in given):
        style = "" if name in given else ' class="default"'
        items.append(f"<li{style}>{html.escape(name)} <code>{html.escape(str(values[name])) or 'not given'}</code></li>")
    return f'<ul class="asked" aria-label="Asked; defaults in grey">{"".join(items)}</ul>'


def _findings(findings: Iterable[Mapping]) -> str:
    """One block a finding, in the order and with the fields of the terminal."""
    blocks = []
    for finding in findings:
        fields = ("read", "observed", "expected", "why", "source", "remedy", "reference")
        rows = (f"<dt>{field}</dt><dd>{html.escape(visible(finding[field]))}</dd>" for field in fields if finding[field])
        title = f"<strong>{finding['severity'].replace('_', ' ')}</strong> <code>{finding['id']}</code> ({finding['stage']})"
        blocks.append(f'<div class="finding"><p>{title}</p><dl>{"".join(rows)}</dl></div>')
    return f'<div id="findings">{"".join(blocks) or "<p>No findings.</p>"}</div>'


def _cells(notebook: Mapping, body: str) -> str:
    """The notebook itself; what did not pass is open. The link's target is inside, so that following the link opens it."""
    name = html.escape(notebook["name"])
    summary = f"<summary>{name} · {_state(notebook['state'])}</summary>"
    opened = "" if notebook["state"] == "pass" else " open"
    inside = f'<div id="{name}">{body or "<p>It was not executed.</p>"}</div>'
    return f'<section class="cells" aria-label="{name}"><details{opened}>{summary}{inside}</details></section>'


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
        return '<p id="checks">Every check passed.</p>'
    return _table("Checks that did not simply pass", ("notebook", "state", "check", "why", "remedy or reference"), rows, "checks")


def _environment(environment: Mapping) -> list[tuple[str, str]]:
    rows = [(name, str(environment[name])) for name in ("python", "platform", "cpus")]
    rows += [("GPU", f"{gpu['name']}, driver {gpu['driver_version']}, {gpu['memory.total']}") for gpu in environment["gpus"]]
    return rows + [(name, version or "not installed") for name, version in environment["packages"].items()]


class _Html(str):
    """A cell that is HTML already."""


def _state(state: str) -> str:
    return f'<strong style="color:{COLOURS.get(state, COLOURS["fail"])}">{html.escape(state.replace("_", " "))}</strong>'


def _table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]], id: str = "") -> str:
    def cell(value: str) -> str:
        return f"<td>{value if isinstance(value, _Html) else html.escape(value)}</td>"

    head = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return (
        f'<table id="{id or caption.lower()}">' + f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
