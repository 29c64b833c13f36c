"""`python -m helpers run`: every notebook in its own process, and one truthful record of all of them."""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path

from helpers.errors import InputError, UsageError
from helpers.paths import RUNS, git_blob
from helpers.suite import junit, preload, record, report
from helpers.suite.execute import End, execute, kill
from helpers.suite.fingerprint import fingerprint
from helpers.suite.kernel import FORKS
from helpers.suite.notebooks import Notebook, ordered, select
from helpers.suite.parameters import ask, assign, default_values
from helpers.suite.progress import Progress, summary

# How long a notebook's process may take to write down what happened after it was told to stop, in seconds.
GRACE = 20.0


@dataclass
class Running:
    """A notebook's process. kernel: the process id it reported; cell: (number, of how many)."""

    notebook: Notebook
    process: multiprocessing.Process
    reports: Connection
    started: float
    cell: tuple[int, int] = (0, 0)
    kernel: int | None = None

    @property
    def name(self) -> str:
        return self.notebook.name

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def kill(self) -> None:
        """The process and its kernel, whatever state they are in."""
        for leader in filter(None, (self.process.pid, self.kernel)):
            kill(leader)


@dataclass
class Run:
    """A run in progress: its folder, what each notebook is given, and what is known so far."""

    folder: Path
    given: Mapping[str, Mapping[str, object]]
    defaults: Mapping[str, Mapping[str, object]]
    question: dict | None
    resolved: dict | None
    progress: Progress
    private: Path = Path()
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    records: dict[str, dict] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)

    @property
    def notebooks(self) -> Path:
        return self.folder / "notebooks"


def main(args: argparse.Namespace) -> int:
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: at least one notebook must run")
    notebooks = ordered(select(args.notebooks))
    parameters = assign(args.parameter, notebooks)
    folder = _folder(args.out)
    try:
        result = _run(args, notebooks, parameters, folder)
    except OSError as error:
        raise InputError(f"{folder}: the run could not be written: {error.strerror}; make room, or choose a folder with --out") from None
    summary(sys.stdout, result, folder)
    return result["exit_code"]


def _run(args: argparse.Namespace, notebooks: Sequence[Notebook], given: Mapping[str, Mapping[str, object]], folder: Path) -> dict:
    defaults = {notebook.name: default_values(notebook) for notebook in notebooks}
    run = Run(folder, given, defaults, *ask(defaults, given), Progress(sys.stderr, len(notebooks)))
    environment = fingerprint()
    _write(folder / "env.json", environment | {"notebooks": {notebook.name: git_blob(notebook.path) for notebook in notebooks}})
    preload.preload()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Not in the run's own folder: the path of a Unix socket may be 100 characters long.
    with tempfile.TemporaryDirectory(prefix="nvfp4-kernels-") as private:
        run.private = Path(private)
        interrupted = _run_all(run, notebooks, args.jobs or environment["cpus"])
    result = _result(run, args.strict, 130 if interrupted else None)
    _write(folder / "result.json", result)
    for written in run.notebooks.glob("*.jsonl"):
        written.unlink()  # result.json holds it now
    (folder / "junit.xml").write_bytes(junit.document(result["notebooks"]))
    sections = {notebook["name"]: run.sections.get(notebook["name"], "") for notebook in result["notebooks"]}
    (folder / "index.html").write_text(report.page(result, environment, sections), encoding="utf-8")
    if args.out is None:
        _link(RUNS / "latest", folder)
    return result


def _folder(asked: Path | None) -> Path:
    if asked is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        names = [stamp, *(f"{stamp}-{number}" for number in range(2, 100))]
        folder = next(RUNS / name for name in names if not (RUNS / name).exists())
    else:
        folder = asked.resolve()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"--out {asked}: it exists and is not an empty folder")
    try:
        (folder / "notebooks").mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write the run there: {error.strerror}") from None
    return folder


def _run_all(run: Run, notebooks: Sequence[Notebook], jobs: int) -> bool:
    """Start, watch and record them all; True when interrupted. A notebook marked `last` waits until the others are done."""
    waiting, running = list(notebooks), []
    try:
        while waiting or running:
            while waiting and len(running) < jobs and not (waiting[0].last and running):
                if waiting[0].last:
                    _write(run.folder / "result.json", _result(run, False, None))
                running.append(_start(run, waiting[0]))
                waiting.pop(0)
            _listen(run, running)
    except KeyboardInterrupt:
        # From here on a second Ctrl-C must not cost what is already known.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        run.progress.say("interrupted: stopping, and keeping what is done")
        for one in running:
            one.process.terminate()
        stop = time.monotonic() + GRACE
        while running:
            _listen(run, running, stop)
        for notebook in waiting:
            _record(run, notebook, End("interrupted", message="it was not started"), 0.0)
        return True
    except BaseException:
        for one in running:
            one.kill()
        raise
    return False


def _start(run: Run, notebook: Notebook) -> Running:
    context = multiprocessing.get_context("fork" if FORKS else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (notebook, run.given[notebook.name], run.notebooks, run.private, theirs)
    process = context.Process(target=execute, args=arguments, name=notebook.name)
    process.start()
    theirs.close()
    return Running(notebook, process, ours, time.monotonic())


def _listen(run: Run, running: list[Running], stop: float | None = None) -> None:
    """Take what the processes report, for at most half a second, and record those that have ended. stop: kill what is left then."""
    ready = wait([one.reports for one in running], timeout=0.5)
    for one in list(running):
        end = _report(run, one) if one.reports in ready else None
        overdue = one.seconds > one.notebook.limits.notebook + GRACE
        if end is None and (overdue or (stop is not None and time.monotonic() > stop)):
            end = End("time_limit" if overdue else "interrupted", message="its process had to be killed")
        if end is not None:
            one.kill()
            one.process.join()
            running.remove(one)
            _record(run, one.notebook, end, one.seconds)
    run.progress.running(running)


def _report(run: Run, one: Running) -> End | None:
    """One message of a notebook's process; its End when that is what it says, or when it died without a word."""
    try:
        kind, *what = one.reports.recv()
    except EOFError:
        one.process.join()
        return End("error", "ProcessDied", f"the process that ran the notebook ended with exit code {one.process.exitcode}")
    if kind == "kernel":
        one.kernel = what[0]
    elif kind == "cell":
        one.cell = (what[0], what[1])
    else:
        run.sections[one.name] = what[1]
        return what[0]
    return None


def _record(run: Run, notebook: Notebook, end: End, seconds: float) -> None:
    given, defaults = run.given[notebook.name], run.defaults[notebook.name]
    run.records[notebook.name] = record.notebook_record(notebook, defaults, given, end, seconds, run.notebooks)
    run.progress.ended(run.records[notebook.name])


def _result(run: Run, strict: bool, forced: int | None) -> dict:
    """result.json of what is recorded so far."""
    notebooks = [run.records[name] for name in sorted(run.records)]
    verdicts = [notebook["verdict"] for notebook in notebooks if notebook["verdict"]]
    return {
        "schema": 1,
        "started": run.started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - run.started).total_seconds(), 2),
        "strict": strict,
        "question": run.question,
        "resolved": run.resolved,
        "exit_code": record.exit_code(notebooks, strict) if forced is None else forced,
        "verdict": verdicts[-1] if verdicts else None,
        "notebooks": notebooks,
    }


def _write(path: Path, content: Mapping) -> None:
    """Whole or not at all: a notebook may be reading the file that is replaced."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _link(link: Path, folder: Path) -> None:
    """Point runs/latest at the run, atomically: whoever opens it meanwhile sees the old run or the new one."""
    beside = link.with_name(f".latest-{os.getpid()}")
    beside.symlink_to(folder.name)
    try:
        beside.replace(link)
    except OSError as error:
        beside.unlink()
        raise InputError(f"{link}: cannot be made to point to {folder.name}: {error.strerror}") from None
