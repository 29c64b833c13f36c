"""Holds helpers.stages.block equal to the real loads: damaged checkpoints, releases, runners, all-to-alls and ranks."""

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from helpers.checkpoint import Checkpoint, open_checkpoint
from helpers.checkpoint.folders import folders
from helpers.deployment import Deployment, Release
from helpers.sglang.compare import Disagreement
from helpers.sglang.damage import KINDS, damaged
from helpers.sglang.loading import LoadAnswer, LoadWorker
from helpers.stages.block import BlockLoad, load_block

# Bundled checkpoints whose model class the rules know, with every method that an expert block can have among their layers.
SUBJECTS = (
    "qwen3-moe-mixed",
    "qwen3-moe-mixed-fp8-layer",
    "qwen3-moe-nvfp4",
    "qwen3-moe-nvfp4-experts",
    "qwen3.5-moe-mixed",
    "minimax-m2-nvfp4",
    "nemotron-h-nvfp4-repaired",
)
RUNNERS = ("flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_trtllm_routed", "marlin", "triton", "auto")
RANKS = ((1, 1, 0), (2, 1, 0), (2, 1, 1), (2, 2, 0), (2, 2, 1), (4, 2, 3))  # tp, ep, rank
# All-to-alls, which make ep as large as tp, and the runners that go with them.
ALL_TO_ALL = (
    ("flashinfer_cutedsl", {"a2a": "deepep", "deepep_mode": "low_latency", "tp": 2}),
    ("flashinfer_cutedsl", {"a2a": "flashinfer", "tp": 2, "dp": 2, "enable_dp_attention": True}),
    ("flashinfer_cutlass", {"a2a": "flashinfer", "tp": 2, "dp": 2, "enable_dp_attention": True}),
    ("flashinfer_trtllm_routed", {"a2a": "flashinfer", "tp": 2, "dp": 2, "enable_dp_attention": True}),
)
WORKERS = 2


@dataclass(frozen=True)
class LoadQuestion:
    """One load: a damaged checkpoint's block on one rank."""

    subject: str
    kind: str
    layer: int
    deployment: Deployment
    rank: int

    def __str__(self):
        deployment = self.deployment
        where = f"{deployment.runner}, {deployment.a2a}, tp {deployment.tp} ep {deployment.ep} rank {self.rank}"
        return f"{self.subject} layer {self.layer}, {self.kind}: {where}"


@dataclass
class LoadReport:
    """answers: what was asked and what the release said, so that changed rules can be held against it without asking again."""

    answers: list[tuple[LoadQuestion, Checkpoint, dict]] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    peak_mib: int = 0
    seconds: float = 0.0

    def add(self, other: "LoadReport"):
        self.answers += other.answers
        self.disagreements += other.disagreements
        self.peak_mib = max(self.peak_mib, other.peak_mib)
        self.seconds += other.seconds

    @property
    def last_line(self) -> str:
        distinct = len({question for question, _, _ in self.answers})
        return f"questions={len(self.answers)} distinct={distinct} disagreements={len(self.disagreements)}"

    def groups(self) -> list[list[Disagreement]]:
        """Disagreements by cause, the commonest first."""
        grouped = defaultdict(list)
        for found in self.disagreements:
            grouped[found.group].append(found)
        return sorted(grouped.values(), key=len, reverse=True)


def questions(release: Release, count: int) -> list[LoadQuestion]:
    """The same `count` of one release on every run, spread evenly over subjects and kinds of damage."""
    drawn = []
    for subject, kind in itertools.product(SUBJECTS, KINDS):
        random = Random(f"{subject}/{kind}")
        layers = open_bundled(subject).geometry.moe_layers[:2]
        all_of_them = list(itertools.product(layers, _launches(open_bundled(subject))))
        random.shuffle(all_of_them)
        drawn.append([_question(subject, kind, release, layer, *launch) for layer, launch in all_of_them])
    rounds = (question for one in itertools.zip_longest(*drawn) for question in one if question is not None)
    return list(itertools.islice(rounds, count))


def _launches(checkpoint: Checkpoint) -> list[tuple[str, dict, int]]:
    """(runner, flags, rank); a tp that does not cut the linear attention's heads is never launched."""
    heads = checkpoint.text_config.get("linear_num_key_heads", 4)
    plain = [(runner, {"tp": tp, "ep": ep}, rank) for runner in RUNNERS for tp, ep, rank in RANKS if heads % tp == 0]
    return plain + [(runner, flags, rank) for runner, flags in ALL_TO_ALL for rank in range(flags["tp"])]


def _question(subject: str, kind: str, release: Release, layer: int, runner: str, flags: dict, rank: int) -> LoadQuestion:
    # 0.5.15 refuses mixed checkpoints to two runners unless the flag says otherwise; the checkpoint wins over it everywhere.
    return LoadQuestion(subject, kind, layer, Deployment(release, runner, quantization="modelopt_fp4", **flags), rank)


@cache
def open_bundled(name: str) -> Checkpoint:
    return open_checkpoint(name)


def compare_loads(releases: Sequence[Release], count: int, say: Callable[[str], None] = print) -> LoadReport:
    """`count` loads of every release, in WORKERS shares of each, so that no core waits for the last release."""
    whole = LoadReport()
    with folders() as folder, ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        made = _Damaged(folder.scratch)
        asked = {release: questions(release, count) for release in releases}
        shares = {
            release: [pool.submit(_compare_share, release, drawn[start::WORKERS], made) for start in range(WORKERS)]
            for release, drawn in asked.items()
        }
        for release, futures in shares.items():
            report = LoadReport()
            for future in futures:
                report.add(future.result())
            say(f"sglang {release}: {report.last_line}")
            whole.add(report)
    return whole


class _Damaged:
    """Each damaged checkpoint made once, for releases that are asked in threads."""

    def __init__(self, scratch: Path):
        self._scratch, self._made, self._lock = scratch, {}, threading.Lock()

    def __call__(self, subject: str, kind: str, layer: int) -> Checkpoint:
        key = (subject, kind, layer)
        with self._lock:
            if key not in self._made:
                folder = self._scratch / f"{subject}-{layer}-{kind.replace(' ', '-')}"
                self._made[key] = damaged(open_bundled(subject), kind, layer, folder)
            return self._made[key]


def _compare_share(release: Release, asked: list[LoadQuestion], made: _Damaged) -> LoadReport:
    report = LoadReport()
    with LoadWorker(release.version) as worker:
        for question, checkpoint, real in _answers(worker, asked, made):
            report.peak_mib = max(report.peak_mib, real.peak_mib)
            report.seconds += real.seconds
            answer = real_load(real)
            report.answers.append((question, checkpoint, answer))
            found = judge_load(question, checkpoint, answer)
            if found is not None:
                report.disagreements.append(found)
    return report


def _answers(worker: LoadWorker, asked: list[LoadQuestion], made: _Damaged) -> Iterator[tuple[LoadQuestion, Checkpoint, LoadAnswer]]:
    for question in asked:
        checkpoint = made(question.subject, question.kind, question.layer)
        yield question, checkpoint, worker.load(checkpoint, question.deployment, question.layer, question.rank, whole=False)


def judge_load(question: LoadQuestion, checkpoint: Checkpoint, real: dict) -> Disagreement | None:
    """What the model says otherwise than the release did."""
    predicted = load_block(checkpoint, question.deployment, question.layer, question.rank)
    if not predicted.known:
        model = {"known": False}
        differences = (("known", False, True),)
    else:
        model = model_load(predicted)
        names = ("step", "error", "message") if model["step"] or real["step"] else tuple(model)
        differences = tuple((name, model[name], real[name]) for name in names if model[name] != real[name])
    return Disagreement(question.deployment.release.version, question.subject, str(question), differences) if differences else None


def model_load(predicted: BlockLoad) -> dict:
    """The compared fields of a prediction."""
    return {
        "step": predicted.step,
        "error": predicted.error,
        "message": predicted.message,
        "method": predicted.method,
        "unwritten": {name: list(experts) for name, experts in predicted.unwritten.items()},
        "dropped": sorted(predicted.dropped),
    }


def real_load(real: LoadAnswer) -> dict:
    """The same fields of a release's answer."""
    return {
        "step": real.step,
        "error": real.error,
        "message": real.message,
        "method": real.method,
        "unwritten": {name.rpartition(".")[2]: experts for name, experts in real.unwritten.items()},
        "dropped": sorted(real.dropped),
    }
