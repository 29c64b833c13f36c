"""One notebook in a process of its own: papermill executes it, and what really happened is reported to the runner.

papermill's own record is not that: when a kernel is killed or a cell takes too long, it calls every cell completed. Here the
exception decides, the notebook that is kept is corrected, and it carries no path of this machine.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from helpers.suite.checks import RECORD_FILE
from helpers.suite.kernel import FORKS, KernelManager, Waiting
from helpers.suite.notebooks import Notebook
from helpers.suite.report import section
from helpers.suite.results import RUN_FOLDER

# How the execution of a notebook can end. "completed" says only that every cell ran; the checks decide what that is worth.
ENDS = ("completed", "raised", "time_limit", "kernel_died", "interrupted", "error")


@dataclass(frozen=True)
class End:
    """error: exception type, or "". message: one line. cell: index, in the executed notebook, of the cell that did not end."""

    how: str
    error: str = ""
    message: str = ""
    cell: int | None = None


class Stopper:
    """Ends the kernel from outside the event loop, once, and remembers why."""

    def __init__(self):
        self.why = ""
        self.cell: int | None = None
        self.kernel: int | None = None

    def stop(self, why: str) -> None:
        self.why = self.why or why
        if self.kernel is not None:
            kill(self.kernel)


def kill(leader: int) -> None:
    """SIGKILL to a process and its group; one that has ended, or has no group yet, is no error."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            send(leader, signal.SIGKILL)


def execute(notebook: Notebook, parameters: Mapping[str, object], folder: Path, private: Path, reports: Connection) -> None:
    """Run as a process. Sends ("kernel", process id), ("cell", number, of how many) as cells start, and last ("end", End, HTML).

    Writes folder/NAME.ipynb, the checks as they are made to NAME.jsonl, and what Jupyter complains about to NAME.log.
    private: a folder with a short path, which the runner removes. SIGTERM ends it as interrupted, the notebook's own limit as
    time_limit.
    """
    # A session of its own: Ctrl-C in the terminal must reach the runner alone, which then ends this process in order.
    os.setsid()
    log = folder / f"{notebook.name}.log"
    _log_to(log)
    stopper = Stopper()
    if FORKS:
        KernelManager.waiting = Waiting()
        stopper.kernel = KernelManager.waiting.pid
        reports.send(("kernel", stopper.kernel))
    signal.signal(signal.SIGTERM, lambda *_: stopper.stop("interrupted"))
    threading.Thread(target=_watch, args=(stopper, os.getppid(), notebook.limits.notebook, private), daemon=True).start()
    executed = folder / f"{notebook.name}.ipynb"
    # Sockets and connection files of this kernel alone, and no start-up files of the user's IPython: what runs is the notebook.
    KernelManager.folder = own = tempfile.mkdtemp(dir=private)
    os.environ |= {"JUPYTER_RUNTIME_DIR": own, "IPYTHONDIR": f"{own}/ipython"}
    os.environ |= {RECORD_FILE: str(folder / f"{notebook.name}.jsonl"), RUN_FOLDER: str(folder.parent)}
    end = _papermill(notebook, parameters, executed, stopper, reports)
    corrected = _corrected(executed, end)
    if not log.stat().st_size:
        log.unlink()
    reports.send(("end", end, corrected))


def _papermill(notebook: Notebook, parameters: Mapping[str, object], executed: Path, stopper: Stopper, reports: Connection) -> End:
    total = notebook.cells + bool(parameters)

    def cell_started(cell, cell_index):
        stopper.cell = cell_index
        reports.send(("cell", cell_index + 1, total))

    def kernel_started(notebook):
        stopper.kernel = KernelManager.process.pid
        reports.send(("kernel", stopper.kernel))

    limits = notebook.limits
    try:
        done = papermill.execute_notebook(
            _literal(notebook.path),
            _literal(executed),
            dict(parameters),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            start_timeout=limits.start,
            execution_timeout=limits.cell,
            cwd=notebook.path.parent,
            coalesce_streams=True,
            kernel_manager_class=KernelManager,
            on_notebook_start=kernel_started,
            on_cell_start=cell_started,
        )
    except PapermillExecutionError as error:
        return End("raised", error.ename, _one_line(error.evalue))
    except CellTimeoutError:
        return End("time_limit", "CellTimeoutError", f"the cell took longer than {limits.cell:g} s", stopper.cell)
    except Exception as error:  # noqa: BLE001  whatever it is, it is this notebook's result, and the others go on
        return _stopped(error, stopper, limits.notebook)
    # sys.exit(0) ends a notebook in the middle, and papermill calls that a success.
    errors = [output for cell in done.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    return End("raised", errors[0].ename, "the notebook ended itself") if errors else End("completed")


def _stopped(error: Exception, stopper: Stopper, limit: float) -> End:
    if stopper.why == "time_limit":
        return End("time_limit", "NotebookTimeout", f"the notebook took longer than {limit:g} s", stopper.cell)
    if stopper.why:
        return End(stopper.why, "", "stopped before it was done", stopper.cell)
    died = KernelManager.exit_code()
    if isinstance(error, DeadKernelError) or died is not None:
        how = f"by signal {-died} ({signal.Signals(-died).name})" if died and died < 0 else f"with exit code {died}"
        return End("kernel_died", "DeadKernelError", f"the kernel ended {how}", stopper.cell)
    return End("error", type(error).__name__, _one_line(str(error)), stopper.cell)


def _log_to(path: Path) -> None:
    """Everything that Jupyter and the kernel say outside of the notebook's outputs, away from the runner's terminal."""
    with path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _watch(stopper: Stopper, parent: int, limit: float, private: Path) -> None:
    """Ends the notebook at its limit, and this process with its kernel when the runner is gone and nobody would."""
    deadline = time.monotonic() + limit
    while os.getppid() == parent:
        if time.monotonic() > deadline:
            stopper.stop("time_limit")
        time.sleep(0.2)
    stopper.stop("interrupted")
    shutil.rmtree(private, ignore_errors=True)  # the runner would have; several of these processes may try
    os._exit(1)


def _literal(path: Path) -> str:
    """papermill fills {names} in paths; a brace in a folder's name is not meant as one."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _corrected(executed: Path, end: End) -> str:
    """Make the kept notebook say what happened, and return its HTML. "" when not even its beginning was written."""
    try:
        kept = nbformat.read(executed, as_version=4)
    except (OSError, ValueError):
        # Not begun, or cut off by a full disk: half a notebook is no evidence.
        executed.unlink(missing_ok=True)
        return ""
    record = kept.metadata.papermill
    record.input_path = record.output_path = executed.name
    if end.how not in ("completed", "raised"):
        record.exception = True
        record.end_reason = end.how
        reached = -1 if end.cell is None else end.cell
        for index, cell in enumerate(kept.cells):
            if index == reached:
                cell.metadata.papermill |= {"status": "failed", "exception": True}
            elif index > reached:
                cell.metadata.papermill |= {"status": "pending", "exception": None, "start_time": None, "end_time": None, "duration": None}
    nbformat.write(kept, executed)
    return section(kept)
