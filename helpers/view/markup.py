"""HTML from values that come out of untrusted checkpoints: everything is escaped unless this module made it.

Styles are inline, because JupyterLab drops <style> elements from notebooks it does not trust.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence

TABLE = "border-collapse:collapse;table-layout:auto;margin:.4em 0;max-width:100%"
CELL = "text-align:left;vertical-align:top;line-height:1.35;padding:.3em .7em;overflow-wrap:break-word;border-bottom:1px solid #8884"
HEAD = CELL + ";border-bottom:2px solid #8888;white-space:nowrap"
BLOCK = (
    "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #8886;border-radius:4px;padding:.6em;margin:.4em 0"
)
CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:.2em 0"


class Markup:
    """HTML that was built here. ``plain`` is what a reader without HTML gets."""

    def __init__(self, source: str, plain: str = ""):
        self.source = source
        self.plain = plain

    def __repr__(self) -> str:
        return self.plain or "<html>"

    def _repr_html_(self) -> str:
        return self.source

    def __add__(self, other: "Markup") -> "Markup":
        return Markup(self.source + other.source, "\n".join(p for p in (self.plain, other.plain) if p))


def visible(value: object) -> str:
    """The text of a value with every unprintable character spelled out, e.g. a NUL as ``\\x00``.

    Control, bidirectional-override and lone surrogate characters would otherwise hide or reorder what a name says.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(value))


def escape(value: object) -> str:
    """HTML of a value: a Markup as it is, anything else escaped, line breaks kept; None is an em dash."""
    if isinstance(value, Markup):
        return value.source
    if value is None:
        return "—"
    return _breakable(html.escape(visible(value))).replace("\n", "<br>")


def _breakable(escaped: str) -> str:
    """Long dotted names and paths may be broken after a dot or a slash, so that a narrow column does not cut them anywhere."""
    return re.sub(r"\S{20,}", lambda long: re.sub(r"([./])(?=\w)", r"\1<wbr>", long[0]), escaped)


def code(value: object) -> Markup:
    text = _breakable(html.escape(visible(value)))
    return Markup(f'<code style="white-space:pre-wrap;overflow-wrap:break-word">{text}</code>', visible(value))


def command(value: object) -> Markup:
    """A block to paste into a terminal."""
    text = html.escape(visible(value))
    return Markup(f'<pre style="{BLOCK}">{text}</pre>', visible(value))


def table(rows: Iterable[Mapping[str, object]], caption: str = "", columns: Sequence[str] = ()) -> Markup:
    """An HTML table. columns: which keys of the rows to show, in order; default: those of the first row.

    A table without rows says so, because an empty table looks like a broken one.
    """
    rows = list(rows)
    head = list(columns) or list(rows[0] if rows else ())
    title = f'<caption style="{CAPTION}">{escape(caption)}</caption>' if caption else ""
    if not rows:
        return Markup(f"<p>{escape(caption)}{': ' if caption else ''}none</p>", f"{caption}: none")
    header = "".join(f'<th scope="col" style="{HEAD}">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f'<td style="{CELL}">{escape(row[name])}</td>' for name in head) + "</tr>" for row in rows)
    return Markup(
        f'<table style="{TABLE}">{title}<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>', _plain(rows, head, caption)
    )


def beside(parts: Mapping[str, Markup]) -> Markup:
    """Parts next to each other under their titles; under each other where the page is narrow."""
    box = "flex:1 1 22em;min-width:0;padding:0 1em 0 0"
    columns = "".join(f'<div style="{box}"><b>{escape(title)}</b>{part.source}</div>' for title, part in parts.items())
    plain = "\n\n".join(f"{title}\n{part.plain}" for title, part in parts.items())
    return Markup(f'<div style="display:flex;flex-wrap:wrap">{columns}</div>', plain)


def excerpt(value: object, entries: int = 4) -> Markup:
    """A JSON value with only the first ``entries`` of every list and object, eight levels deep, and how many were left out."""
    return command(json.dumps(_cut(value, entries, 8), indent=2, ensure_ascii=False))


def _cut(value: object, entries: int, depth: int) -> object:
    if isinstance(value, dict | list) and not depth:
        return "…"
    if isinstance(value, dict):
        kept = {key: _cut(inner, entries, depth - 1) for key, inner in list(value.items())[:entries]}
        return kept if len(value) <= entries else kept | {"…": f"{len(value) - entries} more"}
    if isinstance(value, list):
        kept = [_cut(inner, entries, depth - 1) for inner in value[:entries]]
        return kept if len(value) <= entries else [*kept, f"… {len(value) - entries} more"]
    return value


def details(summary: str, content: Markup, opened: bool = False) -> Markup:
    state = " open" if opened else ""
    return Markup(f"<details{state}><summary>{escape(summary)}</summary>{content.source}</details>", content.plain)


def _plain(rows: list[Mapping[str, object]], head: Sequence[str], caption: str) -> str:
    def text(value: object) -> str:
        return "—" if value is None else value.plain if isinstance(value, Markup) else visible(value)

    lines = [" | ".join(text(row[name]).replace("\n", " ") for name in head) for row in rows]
    return "\n".join([*([caption] if caption else []), " | ".join(head), *lines])
