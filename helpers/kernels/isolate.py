"""Cases in a process of their own: one that hangs, crashes or poisons the GPU ends itself, is named, and the others still run.

The child imports the heavy packages once and works through its cases; it says on a pipe which one it begins and what came out. When
it dies or exceeds the limit of a case, that case is reported so, and a new child goes on with the next.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from helpers.paths import ROOT

# After these words in an error the process's GPU context is of no use any more.
POISONED = ("CUDA error", "cudaError", "CUDA_ERROR", "device-side assert")
POISONED_EXIT = 70


@dataclass(frozen=True)
class Outcome:
    """case: its number. state: done, error (an exception, or NaN that the function reported as one), crashed, or hung. value: what
    the function returned when done. reason: one line otherwise.
    """

    case: int
    state: str
    value: dict | None
    reason: str
    seconds: float


def run(
    function: str, cases: Sequence[Mapping], *, limit: float, start: float = 120.0, env: Mapping[str, str] | None = None
) -> Iterator[Outcome]:
    """Call ``package.module:name`` with each case (plain JSON types) in turn, in a child. One Outcome a case, in order, as they come.

    limit: seconds for one case, compilation included. start: seconds for the child to be ready.
    """
    done = 0
    while done < len(cases):
        for outcome in _child(function, cases, done, limit, start, env):
            done = outcome.case + 1
            yield outcome


def _child(function, cases, first, limit, start, env) -> Iterator[Outcome]:
    reading, writing = os.pipe()
    # -P: not the working directory, where another package may be called helpers.
    command = [sys.executable, "-P", "-m", "helpers.kernels.isolate", function, str(writing)]
    paths = os.pathsep.join(filter(None, (str(ROOT), (env or {}).get("PYTHONPATH") or os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        env={**os.environ, **(env or {}), "PYTHONPATH": paths},
        start_new_session=True,
    )
    os.close(writing)
    lines = _Lines(reading, process.stderr.fileno())
    try:
        process.stdin.write(json.dumps({"first": first, "cases": list(cases[first:])}).encode())
        process.stdin.close()
        current, began, allowed, waiting = first, time.monotonic(), start, "to be ready"
        while True:
            message = lines.next(began + allowed - time.monotonic())
            now = time.monotonic()
            if message == "late":
                yield Outcome(current, "hung", None, f"took more than {allowed:g} s {waiting}; its process was ended", now - began)
                return
            if message == "end":
                code = process.wait()
                if code in (0, POISONED_EXIT) or current == len(cases):
                    return
                yield Outcome(current, "crashed", None, _died(code, lines.last_words()), now - began)
                return
            if "begin" in message:
                current, began, allowed, waiting = message["begin"], now, limit, "for this case"
                continue
            state = "error" if "error" in message else "done"
            yield Outcome(current, state, message.get("value"), message.get("error", ""), now - began)
            current, began, allowed, waiting = current + 1, now, start, "to begin"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
        os.close(reading)


def _died(code: int, errors: str) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return f"its process ended with {how}" + (f": {last[:300]}" if last else "")


class _Lines:
    """JSON lines from one descriptor, while another (the child's complaints) is kept from filling up."""

    def __init__(self, messages: int, errors: int):
        self._messages, self._errors, self._buffer, self._open = messages, errors, b"", {messages, errors}
        self._said = ""

    def last_words(self) -> str:
        """The end of what a child that has died complained of."""
        while self._errors in self._open and (data := os.read(self._errors, 1 << 16)):
            self._said += data.decode(errors="replace")
        return self._said[-4000:]

    def next(self, seconds: float):
        """A message, "end" when the child has closed its end, "late" after ``seconds``."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if self._messages not in self._open:
                return "end"
            ready, _, _ = select.select(list(self._open), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return "late"
            for descriptor in ready:
                data = os.read(descriptor, 1 << 16)
                if not data:
                    self._open.discard(descriptor)
                elif descriptor == self._messages:
                    self._buffer += data
                else:
                    self._said = (self._said + data.decode(errors="replace"))[-4000:]
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


def main(function: str, descriptor: int) -> None:
    """The child."""
    given = json.load(sys.stdin)
    with os.fdopen(descriptor, "w", buffering=1) as pipe:

        def say(**message) -> None:
            pipe.write(json.dumps(message) + "\n")

        module, _, name = function.partition(":")
        call = getattr(import_module(module), name)
        for number, case in enumerate(given["cases"], given["first"]):
            say(begin=number)
            try:
                value = call(case)
            except Exception as error:  # noqa: BLE001 - whatever a kernel raises is this case's result, and is reported
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:600]
                say(error=reason)
                if any(word in reason for word in POISONED):
                    os._exit(POISONED_EXIT)
            else:
                say(value=value)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
