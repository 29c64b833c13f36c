"""What a run shows while it runs, and the table at its end."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

from helpers.findings import LEGEND
from helpers.suite.terminal import Page

# Seconds between two lines about the same running notebooks where lines cannot be overwritten (a log).
HEARTBEAT = 10.0
COLOURS = {"pass": ("green",), "fail": ("red", "bold")}


class Cell(Protocol):
    """A running notebook: its name and the cell it is in, (number, of how many)."""

    name: str
    cell: tuple[int, int]


class Progress:
    """One line a notebook begun and ended; what is running now in a line that is rewritten on a terminal."""

    def __init__(self, stream: TextIO, total: int):
        self.stream = stream
        self.total = total
        self.done = 0
        self.begun = time.monotonic()
        self.last = self.begun
        self.page = Page(stream)
        self.live = stream.isatty()

    def say(self, text: str) -> None:
        clear = "\r\x1b[2K" if self.live else ""
        self.stream.write(f"{clear}{text}\n")
        self.stream.flush()

    def running(self, cells: Iterable[Cell]) -> None:
        now = time.monotonic()
        if now - self.last < (0.2 if self.live else HEARTBEAT):
            return
        self.last = now
        where = ", ".join(f"{cell.name} cell {cell.cell[0]}/{cell.cell[1]}" for cell in cells)
        text = f"[{self.done}/{self.total}] {now - self.begun:.0f} s  {where}"
        if self.live:
            self.stream.write(f"\r\x1b[2K{text[: self.page.width - 1]}")
            self.stream.flush()
        elif where:
            self.say(text)

    def ended(self, notebook: Mapping) -> None:
        self.done += 1
        state = self.page.paint(notebook["state"].replace("_", " "), *COLOURS.get(notebook["state"], ("red", "bold")))
        reason = f"  {notebook['reason']}" if notebook["reason"] else ""
        self.say(f"[{self.done}/{self.total}] {notebook['name']}  {state}  {_counts(notebook)}  {notebook['seconds']:.1f} s{reason}")


def summary(stream: TextIO, result: Mapping, folder: Path) -> None:
    """The verdict table: one row a notebook, then what was decided and where the report is."""
    page = Page(stream)
    notebooks = sorted(result["notebooks"], key=lambda notebook: notebook["name"])
    width = max(len(notebook["name"]) for notebook in notebooks)
    page.line()
    for notebook in notebooks:
        state = page.paint(f"{notebook['state'].replace('_', ' '):<12}", *COLOURS.get(notebook["state"], ("red", "bold")))
        page.line(f"{notebook['name']:<{width}}  {state} {notebook['seconds']:6.1f} s  {_counts(notebook)}")
    verdict = result["verdict"]
    if verdict:
        page.line()
        page.line(f"verdict   {page.paint(verdict['outcome'].replace('_', ' '), 'bold')}: {LEGEND[verdict['outcome']]}")
        page.line("stages    " + " · ".join(f"{stage} {state.replace('_', ' ')}" for stage, state in verdict["stages"].items()))
        severity = "abstained" if verdict["outcome"] == "unknown" else verdict["outcome"]
        deciding = next((finding for finding in verdict["findings"] if finding["severity"] == severity), None)
        if deciding:
            for name in ("why", "source", "remedy"):
                page.field(name, deciding[name], indent=0)
    page.line(f"report    {folder / 'index.html'}")
    outcome = "every check passed" if result["exit_code"] == 0 else f"exit code {result['exit_code']}"
    page.line(f"result    {outcome}, {result['seconds']:.1f} s")
    page.write()


def _counts(notebook: Mapping) -> str:
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in notebook["counts"].items() if count) or "no checks"
