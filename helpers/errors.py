"""The two ways a question can be unanswerable before any verdict: asked wrongly, or about something unreadable.

Both are one line that says what, where and what to do. The command line turns them into exit codes 2 and 3 and prints no
traceback; the notebooks show the line.
"""

import difflib
from collections.abc import Iterable


class OneLineError(ValueError):
    """An error whose message is the whole story; IPython shows the line alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UsageError(OneLineError):
    """The question names something that does not exist (release, runner, parameter …). Exit code 2."""


class InputError(OneLineError):
    """A file or folder cannot be read as what it claims to be. Exit code 3."""


def unknown(what: str, given: object, known: Iterable[str]) -> UsageError:
    """A UsageError that names the nearest known values, e.g. ``unknown("release", "0.5.61", releases)``."""
    known = list(known)
    near = difflib.get_close_matches(str(given), known, n=3, cutoff=0.5)
    shown = ", ".join(known[:12]) + (f", … ({len(known)} in all)" if len(known) > 12 else "")
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {shown}"
    return UsageError(f"unknown {what} {given!r}: {hint}")
