"""The whole comparison of helpers.stages with real releases: what `make differential` and the tests run."""

import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from random import Random

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import Folders, folders
from helpers.deployment import Deployment, Release, gpu
from helpers.paths import DATA
from helpers.sglang.client import ModelAnswer, Worker
from helpers.sglang.compare import Disagreement, built_model, compare_arguments, judge_modules
from helpers.sglang.corners import corners, flags_of
from helpers.sglang.matrix import Question, argument_questions, checkpoints
from helpers.sglang.mutants import mutant
from helpers.sglang.ranks import RankQuestion, built_rank, judge_rank, rank_questions
from helpers.stages.detect import detect
from helpers.stages.route import route

KNOWN = DATA / "known_disagreements.toml"
WORKERS = 2  # at once; each takes a core and 1 GB


@dataclass(frozen=True)
class Known:
    """A disagreement that stays: an upstream nondeterminism or a fault of the simulation, with its reason.

    model_says, release_says: how the two begin in that field. unordered: only where both say the same words in another order.
    """

    id: str
    reason: str
    releases: tuple[str, ...]
    subject: str
    field: str
    release_says: str
    model_says: str = ""
    unordered: bool = False

    def explains(self, found: Disagreement) -> bool:
        if found.release not in self.releases and self.releases != ("all",):
            return False
        return self.subject in (found.subject, "*") and all(self._explains(*difference) for difference in found.differences)

    def _explains(self, name: str, model: object, real: object) -> bool:
        if name != self.field or not str(real).startswith(self.release_says) or not str(model).startswith(self.model_says):
            return False
        return not self.unordered or sorted(re.findall(r"\w+", str(model))) == sorted(re.findall(r"\w+", str(real)))


@cache
def known() -> tuple[Known, ...]:
    entries = tomllib.loads(KNOWN.read_text()).get("disagreement", [])
    return tuple(Known(**entry | {"releases": tuple(entry["releases"])}) for entry in entries)


@dataclass
class Report:
    """What was asked and what differed.

    questions: how many launches were answered; asked: the distinct ones. modules: how many were compared. launches, models, ranks:
    the releases' answers, kept so that a changed model can be held against them without asking again.
    """

    questions: int = 0
    modules: int = 0
    asked: set = field(default_factory=set)
    launches: list[tuple[Question, dict]] = field(default_factory=list)
    models: list[tuple[Checkpoint, Release, ModelAnswer, str | None]] = field(default_factory=list)
    ranks: list[tuple[RankQuestion, ModelAnswer]] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    explained: dict[str, list[Disagreement]] = field(default_factory=lambda: defaultdict(list))

    def add(self, found: Disagreement | None):
        if found is None:
            return
        why = next((entry for entry in known() if entry.explains(found)), None)
        if why is None:
            self.disagreements.append(found)
        else:
            self.explained[why.id].append(found)

    def merge(self, other: "Report"):
        self.questions += other.questions
        self.modules += other.modules
        self.asked |= other.asked
        self.launches += other.launches
        self.models += other.models
        self.ranks += other.ranks
        self.disagreements += other.disagreements
        for name, found in other.explained.items():
            self.explained[name] += found

    def groups(self) -> list[list[Disagreement]]:
        """Disagreements by cause, the commonest first, the simplest question of each group first."""
        grouped = defaultdict(list)
        for found in self.disagreements:
            grouped[found.group].append(found)
        return sorted((sorted(group, key=lambda found: len(found.question)) for group in grouped.values()), key=len, reverse=True)

    @property
    def last_line(self) -> str:
        return f"questions={self.questions} distinct={len(self.asked)} disagreements={len(self.disagreements)}"


def compare_releases(
    releases: Sequence[Release], sample: int, mutants: int, say: Callable[[str], None], subjects: Sequence[Checkpoint] | None = None
) -> Report:
    """Asks the matrix of every release.

    sample, mutants: how many drawn launches and variations for each checkpoint; without any, no odd checkpoint (corners.py) is asked.
    """
    subjects = tuple(subjects) if subjects is not None else checkpoints()
    whole = Report()
    with folders() as folder, ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        newest_first = sorted(releases, reverse=True)  # the newest take longest: begun last, one would end alone
        asked = {pool.submit(compare_release, release, subjects, sample, mutants, folder): release for release in newest_first}
        for future in as_completed(asked):
            report = future.result()
            say(f"sglang {asked[future]}: {report.last_line} modules={report.modules} ranks={len(report.ranks)}")
        for future in sorted(asked, key=asked.get):
            whole.merge(future.result())
    return whole


def compare_release(release: Release, subjects: Sequence[Checkpoint], sample: int, mutants: int, folder: Folders) -> Report:
    report = Report()
    with Worker(release.version) as worker:
        _ask_launches(worker, argument_questions(release, subjects, sample), folder, report)
        for checkpoint in subjects:
            _ask_modules(worker, checkpoint, release, folder, report)
            for variation in variations(checkpoint, release, mutants):
                _ask_launches(worker, [Question(variation, launch) for launch in _launches(release)], folder, report)
                _ask_modules(worker, variation, release, folder, report)
        for question in rank_questions(release, subjects):
            real = built_rank(worker, question, folder)
            report.ranks.append((question, real))
            report.add(judge_rank(question, real))
        for corner in corners() if mutants else ():
            _ask_launches(worker, [Question(corner, launch) for launch in _launches(release)], folder, report)
            for flag in (None, *flags_of(corner, release)):
                _ask_modules(worker, corner, release, folder, report, flag)
    return report


def variations(checkpoint: Checkpoint, release: Release, count: int) -> list[Checkpoint]:
    """The same ones on every run."""
    routing = route(checkpoint, detect(checkpoint, release), release)
    names = list(dict.fromkeys(source for module in routing.modules for source in module.sources if module.kind in ("linear", "experts")))
    return [mutant(checkpoint, names, Random(f"{checkpoint.name}/{number}")) for number in range(count)]


def _launches(release: Release) -> list[Deployment]:
    return [
        *(Deployment(release, runner) for runner in ("auto", "triton", "flashinfer_cutedsl", "flashinfer_trtllm_routed", "marlin")),
        *(Deployment(release, quantization=flag) for flag in ("modelopt_fp4", "modelopt", "fp8", "w4afp8")),
        Deployment(release, a2a="deepep", tp=8, dp=8, enable_dp_attention=True),
        *(Deployment(release, gpu=gpu(name)) for name in ("H100", "RTX-PRO-6000")),
    ]


def _ask_launches(worker: Worker, questions: list[Question], folder: Folders, report: Report):
    report.asked.update((str(folder(question.checkpoint)), question.deployment) for question in questions)
    for question, real, found in compare_arguments(worker, questions, folder):
        report.questions += 1
        report.launches.append((question, real))
        report.add(found)


def _ask_modules(worker: Worker, checkpoint: Checkpoint, release: Release, folder: Folders, report: Report, flag: str | None = None):
    real = built_model(worker, checkpoint, release, folder, flag)
    if real is not None:
        report.modules += len(real.modules)
        report.models.append((checkpoint, release, real, flag))
        report.add(judge_modules(checkpoint, release, real, flag))
