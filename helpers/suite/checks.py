"""What a notebook claims, it checks: ``check`` shows one row and records it, ``finish`` shows the table and decides.

A notebook's checks go on after one has failed; only ``finish`` raises, and only when a check failed. Under the suite's
runner each record is also appended to the file that the environment variable ``NVFP4_MOE_CHECKS`` names, one JSON object a
line, at once: what was checked before a kernel died is not lost. Without that variable (JupyterLab, plain papermill)
nothing is written, and the exception that ``finish`` raises is the exit code.
"""

import html
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.findings import Verdict
from helpers.suite import expectation

STATES = ("pass", "fail", "error", "not_run", "known_bad", "not_reached")
RECORD_FILE = "NVFP4_MOE_CHECKS"

# Readable on white and on JupyterLab's dark theme; the word stands beside the colour, which never carries the meaning alone.
COLOURS = {"pass": "#1b7f4d", "fail": "#c1272d", "error": "#c1272d", "not_run": "#6b6b6b", "known_bad": "#9a6700", "not_reached": "#6b6b6b"}
LONGEST_SHOWN = 400


@dataclass(frozen=True)
class Check:
    """One row. id: dotted and stable. observed, expected: text. reference: the public thread of a known_bad."""

    id: str
    state: str
    observed: str = ""
    expected: str = ""
    why: str = ""
    remedy: str = ""
    reference: str = ""


class ChecksFailed(AssertionError):
    """At least one check of the notebook failed. IPython shows the message alone: the table above it says the rest."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class Checks:
    """The checks of one notebook. A notebook uses the module's functions below; tests make their own."""

    def __init__(self):
        self.records: dict[str, Check] = {}

    def check(self, id: str, observed: object, expected: object, why: str, remedy: str = "") -> None:
        """Show and record whether ``observed == expected``. remedy: what to do when it is not."""
        state = "pass" if bool(observed == expected) else "fail"
        self._add(Check(id, state, text(observed), text(expected), why, remedy))

    def known_bad(self, id: str, observed: object, expected: object, why: str, reference: str) -> None:
        """Show and record something publicly known to be wrong. It fails on the day it is right: then it becomes a check."""
        if not reference:
            raise ValueError(f"known_bad {id!r} needs the public reference of the defect")
        if bool(observed == expected):
            remedy = "it is mended: turn this known_bad into a check"
            self._add(Check(id, "fail", text(observed), f"still not {text(expected)}", why, remedy, reference))
        else:
            self._add(Check(id, "known_bad", text(observed), text(expected), why, "", reference))

    def not_run(self, id: str, reason: str, remedy: str = "") -> None:
        """Show a card that says which hardware, package or file a section needs, and record that it was not verified."""
        if not reason:
            raise ValueError(f"not_run {id!r} needs a reason")
        self._add(Check(id, "not_run", why=reason, remedy=remedy))

    def finish(self, verdict: Verdict | None = None, expect: str = "", stage: str | None = None) -> None:
        """Show the table of all checks and raise ChecksFailed when one failed.

        verdict, expect, stage: also check that the verdict does not contradict the outcomes named in ``expect`` ("" means
        serves). With a stage, only the findings of that stage and of earlier ones can contradict; without, all of them do.
        """
        if verdict is not None:
            expected = expectation.parse(expect)
            reason = expectation.contradiction(verdict, expected, stage)
            deciding = verdict.deciding
            self._add(
                Check(
                    "expect",
                    "fail" if reason else "pass",
                    verdict.outcome,
                    " or ".join(expected) + (f", as far as the stage {stage!r} can tell" if stage else ""),
                    reason or "the verdict does not contradict what the parameter `expect` names",
                    deciding.remedy if reason and deciding else "",
                )
            )
        failed = [record for record in self.records.values() if record.state == "fail"]
        _display(_table_html(self.records.values()), "\n".join(map(_line, self.records.values())))
        self._write({"finished": True, "verdict": verdict.to_dict() if verdict else None})
        if not self.records:
            raise ChecksFailed("this notebook checked nothing: run all its cells, from the first")
        if failed:
            raise ChecksFailed(f"{len(failed)} of {len(self.records)} checks failed: {', '.join(record.id for record in failed)}")

    def _add(self, record: Check) -> None:
        # A cell that is run again in JupyterLab replaces its row; under the runner every cell runs once, so a second row of
        # the same id is a mistake that would hide the first.
        if RECORD_FILE in os.environ and record.id in self.records:
            raise ValueError(f"check {record.id!r} was recorded twice; every check of a notebook needs its own id")
        self.records[record.id] = record
        _display(_card_html(record), _line(record))
        self._write(asdict(record))

    def _write(self, entry: dict) -> None:
        # Asked at each record: the runner's kernels are forked after this module was imported.
        if path := os.environ.get(RECORD_FILE):
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")


def text(value: object) -> str:
    """The value as a row shows it: strings as they are, the rest as Python writes them."""
    return value if isinstance(value, str) else repr(value)


def _line(record: Check) -> str:
    if record.state == "not_run":
        return f"{record.state:<11} {record.id}: {record.why}"
    parts = [f"{record.state:<11} {record.id}: {_short(record.observed)}"]
    if record.state != "pass":
        parts += [f"expected {_short(record.expected)}", record.why, record.remedy]
    return "; ".join(part for part in parts if part)


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]} … ({len(value)} characters)"


def _state_html(record: Check) -> str:
    return f'<strong style="color:{COLOURS[record.state]}">{record.state.replace("_", " ")}</strong>'


def _id_html(record: Check) -> str:
    return f'<code style="white-space:nowrap">{html.escape(record.id)}</code>'


def _detail_html(record: Check) -> str:
    """Everything after the id: the observed value alone where it is as expected, all of it where not."""
    if record.state == "pass":
        return f"<code>{html.escape(_short(record.observed))}</code>"
    parts = []
    if record.state != "not_run":
        parts.append(f"observed <code>{html.escape(_short(record.observed))}</code>")
        parts.append(f"expected <code>{html.escape(_short(record.expected))}</code>")
    parts += [html.escape(record.why), f"<em>{html.escape(record.remedy)}</em>" if record.remedy else "", html.escape(record.reference)]
    return "<br>".join(part for part in parts if part)


def _card_html(record: Check) -> str:
    return (
        f'<div style="border-left:4px solid {COLOURS[record.state]};padding:2px 10px;margin:2px 0">'
        f"{_state_html(record)} {_id_html(record)} {_detail_html(record)}</div>"
    )


def _table_html(records) -> str:
    rows = "".join(
        f'<tr><td style="text-align:left">{_state_html(record)}</td><td style="text-align:left">{_id_html(record)}</td>'
        f'<td style="text-align:left">{_detail_html(record)}</td></tr>'
        for record in records
    )
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in ("state", "check", "observed"))
    return f"<table><caption>Checks of this notebook</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _display(as_html: str, as_text: str) -> None:
    # Not at the top: the command line imports this module's states and has no use for IPython.
    from IPython.display import display

    display({"text/html": as_html, "text/plain": as_text}, raw=True)


# One kernel runs one notebook, so one set of checks per process is the notebook's own.
_notebook = Checks()
check = _notebook.check
known_bad = _notebook.known_bad
not_run = _notebook.not_run
finish = _notebook.finish
