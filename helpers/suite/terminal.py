"""Text for a terminal: colour only where someone looks, and nothing from a checkpoint can move the cursor."""

import os
import shutil
import textwrap
from typing import TextIO

from helpers.view.markup import visible

CODES = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
WIDEST = 140


def colours_on(stream: TextIO) -> bool:
    """NO_COLOR (https://no-color.org) wins, then whether the stream is a terminal that knows colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


class Page:
    """Lines for one stream, wrapped to its width when it is a terminal."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.colours = colours_on(stream)
        self.width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST) if stream.isatty() else WIDEST
        self.lines: list[str] = []

    def paint(self, text: str, *styles: str) -> str:
        if not self.colours or not styles:
            return text
        return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        self.lines.append(text)

    def field(self, name: str, value: object, indent: int = 3, label: int = 10) -> None:
        """`name` and a value that may be long, wrapped and aligned under itself; nothing for an empty value."""
        text = visible(value)
        if not text:
            return
        first = " " * indent + self.paint(f"{name:<{label}}", "dim")
        room = max(self.width - indent - label, 30)
        # Long names and commands are not cut at hyphens: what is shown must survive copy and paste.
        wrapped = [
            piece
            for line in text.split("\n")
            for piece in (textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""])
        ]
        self.lines.append(first + wrapped[0])
        self.lines += [" " * (indent + label) + piece for piece in wrapped[1:]]

    def write(self) -> None:
        self.stream.write("\n".join(self.lines) + "\n")
