"""Run an audit: several processes, progress with bytes and time left, and a record that a stopped audit continues from."""

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from helpers.checkpoint import Checkpoint
from helpers.errors import InputError
from helpers.findings import PROVABLE
from helpers.nvfp4.audit.plan import Job, plan
from helpers.nvfp4.audit.scan import MatrixStats, Reader, scan

UNIT_BYTES = 128 << 20  # what one process takes at a time: often enough for progress, seldom enough to cost nothing
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Audit:
    """What was found in every matrix. full: all codes were read, not one stretch in 16. bytes: of the matrices, as stored."""

    checkpoint: str
    full: bool
    matrices: tuple[MatrixStats, ...]
    bytes: int
    seconds: float


def audit(
    checkpoint: Checkpoint,
    *,
    full: bool = True,
    processes: int = 1,
    original: Checkpoint | None = None,
    record: Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit every NVFP4 matrix of a checkpoint.

    record: a file that each finished unit is written to; an audit of the same files with the same settings that finds it there goes
    on after the last whole unit. progress(done, total, seconds): after each unit, in bytes; ``print_progress`` is one.
    InputError when there are no weights, a matrix does not fit together, or a file cannot be read to the end.
    """
    jobs = plan(checkpoint, original)
    if not jobs:
        unread = next((finding for finding in checkpoint.findings if finding.stage == "load" and finding.severity in PROVABLE), None)
        why = f": {unread.read}: {unread.observed}; {unread.remedy}" if unread else ""
        raise InputError(f"{checkpoint.name}: has no NVFP4 weights that can be read; there is nothing to audit{why}")
    units = list(_units(jobs))
    begun = time.perf_counter()
    journal = _Journal(record, _identity(jobs, full))
    total, done = sum(job.nbytes for job in jobs), sum(sum(job.nbytes for job in units[number]) for number in journal.done)
    already = done
    todo = [number for number in range(len(units)) if number not in journal.done]
    results = _inline(units, todo, full) if processes == 1 else _parallel(units, todo, full, processes)
    for number, stats in results:
        journal.add(number, stats)
        done += sum(job.nbytes for job in units[number])
        if progress:
            progress(done, total, (time.perf_counter() - begun) * done / max(done - already, 1))
    matrices = tuple(stats for number in range(len(units)) for stats in journal.done[number])
    return Audit(checkpoint.name, full, matrices, total, time.perf_counter() - begun)


def _units(jobs: list[Job]) -> Iterator[list[Job]]:
    unit, size = [], 0
    for job in jobs:
        unit.append(job)
        size += job.nbytes
        if size >= UNIT_BYTES:
            yield unit
            unit, size = [], 0
    if unit:
        yield unit


def scan_unit(unit: list[Job], full: bool) -> list[MatrixStats]:
    with Reader() as reader:
        return [scan(job, reader, full) for job in unit]


def _inline(units, todo, full) -> Iterator[tuple[int, list[MatrixStats]]]:
    for number in todo:
        yield number, scan_unit(units[number], full)


def _parallel(units, todo, full, processes) -> Iterator[tuple[int, list[MatrixStats]]]:
    # spawn: a forked child would inherit torch's threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: dict = {}
        numbers = iter(todo)
        try:
            while True:
                for number in numbers:
                    waiting[pool.submit(scan_unit, units[number], full)] = number
                    if len(waiting) >= 2 * processes:
                        break
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    number = waiting.pop(future)
                    yield number, future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "an audit process was killed (out of memory?); run again with fewer processes, it goes on where it stopped"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _identity(jobs: list[Job], full: bool) -> str:
    """What a record must have been made of to be continued: the same matrices in files of the same size and age, read as much."""
    files = sorted({job.codes.file for job in jobs} | {job.scales.file for job in jobs})
    stamps = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    return json.dumps([full, len(jobs), any(job.original for job in jobs), UNIT_BYTES, stamps])


class _Journal:
    """Finished units, in memory and, given a path, one JSON line each in a file whose first line says what it is of."""

    def __init__(self, path: Path | None, identity: str):
        self.done: dict[int, list[MatrixStats]] = {}
        self._path = path
        if path is None:
            return
        try:
            lines = path.read_text().split("\n") if path.exists() else []
        except UnicodeDecodeError:
            lines = ["not text"]
        if lines and lines[0] and not lines[0].startswith(("[true, ", "[false, ")):  # it would be written over
            raise InputError(f"{path}: not the record of an audit; name another file, or remove this one")
        if lines and lines[0] == identity:
            self.done = dict(_parse(lines[1:]))
        # Written anew: a line that a crash cut short must not stand before the next.
        partial = path.with_suffix(path.suffix + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(identity + "\n" + "".join(_line(number, stats) for number, stats in self.done.items()))
            partial.replace(path)
        except OSError as error:
            raise InputError(f"{path}: the record cannot be written ({error.strerror}); name a file in a folder of yours") from None

    def add(self, number: int, stats: list[MatrixStats]) -> None:
        self.done[number] = stats
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(_line(number, stats))


def _line(number: int, stats: list[MatrixStats]) -> str:
    return json.dumps([number, [asdict(matrix) for matrix in stats]]) + "\n"


def _parse(lines: Iterable[str]) -> Iterator[tuple[int, list[MatrixStats]]]:
    for line in lines:
        try:
            number, stats = json.loads(line)
        except ValueError:
            continue  # cut short when the audit stopped
        yield number, [MatrixStats(**{**matrix, "codes": tuple(matrix["codes"])}) for matrix in stats]


def print_progress(done: int, total: int, seconds: float) -> None:
    """One line on stderr, rewritten in a terminal."""
    rate = done / max(seconds, 1e-9)
    left = (total - done) / rate if rate else math.inf
    text = f"audit: {done / 1e9:.2f} of {total / 1e9:.2f} GB ({done / total:.0%}), {rate / 1e9:.2f} GB/s, {left:.0f} s left"
    print(text, end="\r" if sys.stderr.isatty() and done < total else "\n", file=sys.stderr, flush=True)
