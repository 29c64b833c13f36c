"""Compile kernels for GPUs that are not here, and remember what came out.

A question is one kernel in one variant for one architecture and one block of experts. `ask` answers from the cache, or from one worker
process that is started for all that is missing. The cache is $NVFP4_CACHE/kernels (default ~/.cache/nvfp4-moe-validation/kernels), a
file a question, named by everything the answer depends on: the question, the versions installed, and our own sources.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from helpers.errors import InputError, UsageError, unknown
from helpers.kernels.catalogue import KERNELS, kernel, not_offered
from helpers.kernels.geometry import Block
from helpers.kernels.targets import TARGETS
from helpers.kernels.versions import Platform, compile_blocker, here
from helpers.paths import ROOT

# A compile takes one core and about a gigabyte.
PARALLEL = max(2, min(8, (os.cpu_count() or 2) // 2))
LIMIT = 120.0  # seconds of one compile; the longest seen is 6
IMPORT_SECONDS, COMPILE_SECONDS = 8.0, 1.3
_SOURCES = ("artifacts.py", "e2m1_sm90.py", "geometry.py", "targets.py", "worker.py", "configurations/*.py")


# How a reason begins, and what is known then. All others are the library's.
_FACTS = {"ptxas": "assembler", "geometry": "geometry", "not offered": "not offered"}


@dataclass(frozen=True)
class Question:
    """tactic: the name of a variant; "" is the first that the library accepts for the block. software: with E2M1 conversions in integer
    arithmetic.
    """

    kernel: str
    block: Block
    arch: str
    tactic: str = ""
    software: bool = False

    def __post_init__(self):
        kernel(self.kernel)
        if self.arch not in TARGETS:
            raise unknown("architecture", self.arch, TARGETS)


@dataclass(frozen=True)
class Compiled:
    """What came of a question. reason: one line, "" when it compiled. seconds: processor time of the compile when it was done.

    registers and stack (bytes) a thread, the most of any of its device functions, and shared memory of a block in bytes; None when
    unknown: without cuobjdump, or computed at launch. instructions: telling PTX instructions and how often each stands there.
    """

    question: Question
    tactic: str
    ok: bool
    reason: str
    seconds: float
    registers: int | None = None
    stack: int | None = None
    shared: int | None = None
    instructions: tuple[tuple[str, int], ...] = ()
    cached: bool = False

    @property
    def fact(self) -> str:
        """compiled, assembler (the assembler has no such instruction for this GPU), geometry (the library accepts no variant for this
        block), not offered (a package that the kernel needs is not here), or library (it names other GPUs, or fails before the
        assembler).
        """
        if self.ok:
            return "compiled"
        return _FACTS.get(self.reason.partition(":")[0], "library")

    @property
    def too_large(self) -> bool:
        """It compiled, and asks for more shared memory than a block may have on that GPU: it could not be launched."""
        return self.shared is not None and self.shared > TARGETS[self.question.arch].shared_block


def folder() -> Path:
    return Path(os.environ.get("NVFP4_CACHE") or Path.home() / ".cache" / "nvfp4-moe-validation") / "kernels"


@cache
def _sources() -> str:
    room = ROOT / "helpers" / "kernels"
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in room.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Cache:
    """Answers by job. A file that is damaged is as one that is not there; one that cannot be written costs only time."""

    def __init__(self, platform: Platform):
        self._versions = {"packages": platform.packages(), "sources": _sources()}

    def path(self, job: dict) -> Path:
        asked = {name: value for name, value in job.items() if name != "limit"}
        return folder() / f"{hashlib.sha256(json.dumps([asked, self._versions], sort_keys=True).encode()).hexdigest()[:32]}.json"

    def read(self, job: dict) -> dict | None:
        try:
            answer = json.loads(self.path(job).read_bytes())
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) and type(answer.get("ok")) is bool else None

    def write(self, job: dict, answer: dict) -> None:
        path = self.path(job)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
                json.dump(answer, part)
            os.replace(part.name, path)
        except OSError:
            return


def _job(question: Question, limit: float) -> dict:
    block = asdict(question.block)
    return {
        "op": "compile",
        "kernel": question.kernel,
        "block": block,
        "arch": question.arch,
        "tactic": question.tactic,
        "software": question.software,
        "limit": limit,
    }


def _worker(jobs: Sequence[dict]) -> Iterator[dict]:
    """Answers of one worker process, as they come. InputError when it ends before it has answered."""
    command = [sys.executable, "-m", "helpers.kernels.worker"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as asked:
        json.dump({"parallel": PARALLEL, "jobs": list(jobs)}, asked)
        asked.seek(0)
        with subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process:
            try:
                answered = 0
                for line in process.stdout:
                    # A library that prints while it is imported does not answer.
                    if line.startswith("{"):
                        answered += 1
                        yield json.loads(line)
            finally:
                process.terminate()
        if answered < len(jobs):
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
            raise InputError(f"the compiling process ended after {answered} of {len(jobs)} answers and said: {last}")


def _answers(jobs: Sequence[dict], progress: Callable[[int, int], None] | None = None) -> list[dict]:
    """An answer a job, in their order; those from the cache carry "cached"."""
    platform = here()
    blocker = compile_blocker(platform)
    if blocker:
        raise InputError(blocker)
    cache = Cache(platform)
    found = [cache.read(job) for job in jobs]
    missing = [number for number, answer in enumerate(found) if answer is None]
    done = [answer and answer | {"cached": True} for answer in found]
    # The same dictionary comes back with its answer; two equal questions are asked once.
    waiting: dict[str, list[int]] = {}
    for number in missing:
        waiting.setdefault(json.dumps(jobs[number], sort_keys=True), []).append(number)
    asked = [json.loads(text) for text in waiting]
    for count, answer in enumerate(_worker(asked) if asked else (), 1):
        job = answer.pop("job")
        if not answer.pop("transient", False):
            cache.write(job, answer)
        for number in waiting[json.dumps(job, sort_keys=True)]:
            done[number] = answer | {"cached": False}
        if progress:
            progress(count, len(asked))
    return done


def _compiled(question: Question, answer: dict) -> Compiled:
    functions = answer.get("functions") or ()
    return Compiled(
        question,
        answer.get("tactic", question.tactic),
        answer["ok"],
        answer.get("reason", ""),
        answer.get("seconds", 0.0),
        max((function["registers"] for function in functions), default=None),
        max((function["stack"] for function in functions), default=None),
        answer.get("shared"),
        tuple(answer.get("instructions", {}).items()),
        answer["cached"],
    )


def compile_all(questions: Sequence[Question], progress: Callable[[int, int], None] | None = None, limit: float = LIMIT) -> list[Compiled]:
    """One result a question, in their order. InputError when nothing can be compiled here; a kernel that does not compile, hangs or
    takes the compiler down is a result. progress(done, of) is called as those that are not cached end.
    """
    if limit <= 0:
        raise UsageError(f"limit {limit}: give a number of seconds above 0")
    absent = _absent(questions)
    asked = [question for question in questions if question.kernel not in absent]
    answers = iter(_answers([_job(question, limit) for question in asked], progress))
    return [
        Compiled(question, question.tactic, False, absent[question.kernel], 0.0)
        if question.kernel in absent
        else _compiled(question, next(answers))
        for question in questions
    ]


def _absent(questions: Sequence[Question]) -> dict[str, str]:
    """The kernels that are not offered with the packages here, and why."""
    platform = here()
    reasons = {name: not_offered(KERNELS[name], platform) for name in {question.kernel for question in questions}}
    return {name: f"not offered: {reason}" for name, reason in reasons.items() if reason}


def missing(questions: Sequence[Question]) -> int:
    """How many would have to be compiled."""
    cache, absent = Cache(here()), _absent(questions)
    return sum(question.kernel not in absent and cache.read(_job(question, LIMIT)) is None for question in questions)


def budget(questions: Sequence[Question]) -> float:
    """Seconds that asking takes on an idle machine: 0 when all are cached."""
    count = missing(questions)
    return IMPORT_SECONDS + count * COMPILE_SECONDS / PARALLEL if count else 0.0


def tactics(kernels: Sequence[str], block: Block, arch: str) -> dict[str, dict[str, bool]]:
    """The variants of each kernel by name, and whether the library accepts the block in them. A kernel whose recipe cannot be read
    raises InputError.
    """
    jobs = [{"op": "tactics", "kernel": kernel(name).name, "block": asdict(block), "arch": arch, "limit": LIMIT} for name in kernels]
    answers = _answers(jobs)
    for job, answer in zip(jobs, answers, strict=True):
        if not answer["ok"]:
            raise InputError(f"{job['kernel']}: {answer['reason']}")
    return {job["kernel"]: answer["tactics"] for job, answer in zip(jobs, answers, strict=True)}


def claims() -> dict[str, frozenset[int]]:
    """The GPUs each kernel's library says it is for, as compute capabilities (90, 103 …)."""
    # What is asked is part of the question, so that an edited catalogue is another one.
    asked = {name: [kernel.claim.reads, sorted(kernel.claim.typed), sorted(kernel.claim.kernel_for)] for name, kernel in KERNELS.items()}
    answer = _answers([{"op": "claims", "claims": asked, "limit": LIMIT}])[0]
    if not answer["ok"]:
        raise InputError(f"the library's claims: {answer['reason']}")
    return {name: frozenset(answer["claims"][name]) for name in KERNELS}
