"""The process that compiles: it imports FlashInfer and the CuTe DSL once, and forks a child for every job.

`python -m helpers.kernels.worker` reads {"parallel": n, "jobs": [...]} from stdin and writes one JSON line a finished job. Job fields:
op ("compile", "tactics" or "claims"), kernel, block, arch, tactic ("" for the first legal one), software (E2M1 conversions), limit in
seconds. A child that dies or does not
end by its limit is only its own job's failure.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from helpers.errors import unknown
from helpers.kernels import artifacts, e2m1_sm90
from helpers.kernels.catalogue import KERNELS
from helpers.kernels.configurations import FAMILIES, recipe
from helpers.kernels.geometry import Block
from helpers.kernels.targets import TARGETS, pretend

_POLL_SECONDS = 0.02
# Each complaint of the assembler begins with the line of the text it counts in. The DSL wraps and colours them.
_ASSEMBLER = re.compile(r"ptxas application ptx input, line \d+; error\s*:(.*?)(?= ptxas | -->|$)")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # the child pretends to have a GPU; a real one must not answer half of its questions
    "FLASHINFER_CUTE_DSL_DISABLE_CACHE": "1",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "CUTE_DSL_NO_CACHE": "1",
    "CUTE_DSL_KEEP": "ptx,cubin",
}


@dataclass
class _Child:
    job: dict
    folder: Path
    started: float


def reason(error: BaseException) -> str:
    """One line: the assembler's own sentence where there is one, else the first that the library says."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).replace("base_dsl.Arch.", "").splitlines() if line.strip()]
    said = _ASSEMBLER.search(" ".join(lines))
    if said:
        return f"ptxas: {said[1].strip()}"
    return f"{type(error).__name__}: {lines[0].removeprefix('error: ')}" if lines else type(error).__name__


def _keep_artifacts(folder: Path) -> list[str]:
    """Assembly and cubins of later compiles go into the folder, and the host code of each is added to the list."""
    from cutlass.base_dsl.compiler import CompileCallable
    from cutlass.base_dsl.dsl import DSLSingletonMeta

    os.environ["CUTE_DSL_DUMP_DIR"] = str(folder)
    for dsl in DSLSingletonMeta._instances.values():
        dsl.envar.dump_dir = str(folder)
    lowered, compile_ = [], CompileCallable.__call__

    def compile_and_keep(self, *args, **kwargs):
        compiled = compile_(self, *args, **kwargs)
        lowered.append(str(compiled.ir_module))
        return compiled

    CompileCallable.__call__ = compile_and_keep
    return lowered


def _compile(job: dict, folder: Path) -> dict:
    target = TARGETS[job["arch"]]
    pretend(target)
    lowered = _keep_artifacts(folder)
    if job["software"]:
        e2m1_sm90.install()
    block, chosen = Block(**job["block"]), recipe(job["kernel"])
    legal = chosen.tactics(block)
    tactic = job["tactic"] or next((name for name, accepted in legal.items() if accepted), "")
    if not legal.get(tactic):
        return _refused(tactic, block, legal)
    started = time.process_time()
    chosen.build(block, target, tactic)
    seconds = time.process_time() - started
    functions = artifacts.device_functions(folder.rglob("*.cubin"))
    return {
        "ok": True,
        "tactic": tactic,
        "seconds": round(seconds, 2),
        "functions": None if functions is None else [asdict(function) for function in functions],
        "shared": artifacts.shared_memory(lowered),
        "instructions": artifacts.instructions(path.read_text(errors="replace") for path in sorted(folder.rglob("*.ptx"))),
    }


def _refused(tactic: str, block: Block, legal: dict[str, bool]) -> dict:
    if tactic and tactic not in legal:
        raise unknown("variant", tactic, legal)
    what = f"variant {tactic!r}" if tactic else f"any of its {len(legal)} variants"
    return {"ok": False, "tactic": tactic, "reason": f"geometry: the library does not accept {block} in {what}"}


def _tactics(job: dict, folder: Path) -> dict:
    pretend(TARGETS[job["arch"]])
    return {"ok": True, "tactics": recipe(job["kernel"]).tactics(Block(**job["block"]))}


def _claims(job: dict, folder: Path) -> dict:
    return {"ok": True, "claims": {name: sorted(kernel.claim.gpus()) for name, kernel in KERNELS.items()}}


_OPERATIONS = {"compile": _compile, "tactics": _tactics, "claims": _claims}
# These say something about the machine and not about the kernel: the next time may be different.
_OF_THE_MACHINE = (OSError, MemoryError, ImportError)


def _in_child(job: dict, folder: Path) -> None:
    # The libraries print; stdout is for the answers.
    with open(folder / "said", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    try:
        answer = _OPERATIONS[job["op"]](job, folder)
    except BaseException as error:  # noqa: BLE001  whatever a library raises is the answer
        answer = {"ok": False, "reason": reason(error), "transient": isinstance(error, _OF_THE_MACHINE)}
    (folder / "answer").write_text(json.dumps(answer))


def _start(job: dict, folder: Path) -> int:
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            _in_child(job, folder)
        finally:
            os._exit(0)
    return pid


def _answer(child: _Child, status: int, killed: bool) -> dict:
    path = child.folder / "answer"
    if killed:
        answer = {"ok": False, "reason": f"hangs: killed after {child.job['limit']:g} s", "transient": True}
    elif os.WIFSIGNALED(status):
        answer = {"ok": False, "reason": f"the compiler died: {signal.Signals(os.WTERMSIG(status)).name}", "transient": True}
    elif path.exists():
        answer = json.loads(path.read_text())
    else:
        answer = {"ok": False, "reason": "the compiler ended without an answer", "transient": True}
    shutil.rmtree(child.folder)
    return answer | {"job": child.job}


def run(jobs: list[dict], parallel: int, scratch: Path):
    """Yields an answer a job, in the order in which they end."""
    waiting, children, numbered = list(reversed(jobs)), {}, 0
    while waiting or children:
        while waiting and len(children) < parallel:
            job, numbered = waiting.pop(), numbered + 1
            folder = scratch / str(numbered)
            children[_start(job, folder)] = _Child(job, folder, time.monotonic())
        for pid, child in list(children.items()):
            late = time.monotonic() - child.started > child.job["limit"]
            if late:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                yield _answer(children.pop(pid), status, late)
        time.sleep(_POLL_SECONDS)


def warm(kernels) -> None:
    """Import what the jobs need before the first fork. What cannot be imported is said by the job that needs it."""
    for family in sorted({FAMILIES[kernel] for kernel in kernels if kernel in FAMILIES}):
        try:
            import_module(f"helpers.kernels.configurations.{family}")
        except ImportError:
            continue


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ |= _ENVIRONMENT
    warm(job["kernel"] for job in asked["jobs"] if "kernel" in job)
    scratch = Path(tempfile.mkdtemp(prefix="nvfp4-kernels-"))
    try:
        for answer in run(asked["jobs"], asked["parallel"], scratch):
            print(json.dumps(answer), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
