"""Holds what helpers.stages says of ranks equal to the releases: what the last rank of a tp and ep holds, and what cannot be cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import Folders
from helpers.deployment import Deployment, Release
from helpers.errors import UsageError
from helpers.findings import Finding
from helpers.sglang.client import ModelAnswer, Worker
from helpers.sglang.compare import BUILDERS, SHAPE_CHECKS, Disagreement
from helpers.stages.verdict import judge

# (tp, ep, dp); with dp > 1 attention is data parallel. Each is asked for its last rank. The last four come out uneven for many models:
# a vision tower's heads, the number of experts, an expert's width, and the ranks themselves.
SPLITS = ((2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 4, 1), (8, 1, 1), (8, 8, 1), (32, 32, 1), (8, 8, 8), (32, 1, 32), (6, 4, 6))
LARGE, OF_LARGE = 8, ((4, 1, 1), (8, 8, 1), (32, 32, 1))  # a model of more layers takes a second to build, and is asked about these only
CHUNK = 24576  # tokens of a prefill: whole pages on every one of these ranks
UNEVEN = ("load.ranks_do_not_divide", "load.heads_do_not_divide", "load.more_ranks_than_experts", "load.experts_not_divisible")


@dataclass(frozen=True)
class RankQuestion:
    """One rank of a launch of a checkpoint."""

    checkpoint: Checkpoint
    deployment: Deployment
    rank: int

    def __str__(self):
        return f"{self.checkpoint.name}: rank {self.rank} of {self.deployment}"


def rank_questions(release: Release, subjects: Sequence[Checkpoint]) -> Iterator[RankQuestion]:
    """One checkpoint of each shape that has experts, with a runner under which the release builds it."""
    asked = set()
    for checkpoint in subjects:
        heads = checkpoint.text_config.get("num_attention_heads")
        shape = (checkpoint.architecture, checkpoint.geometry, heads)
        if checkpoint.geometry is None or shape in asked:
            continue
        asked.add(shape)
        for tp, ep, dp in OF_LARGE if checkpoint.geometry.layers > LARGE else SPLITS:
            deployment = _accepted(checkpoint, release, tp, ep, dp)
            if deployment is not None:
                yield RankQuestion(checkpoint, deployment, tp - 1)


def _accepted(checkpoint: Checkpoint, release: Release, tp: int, ep: int, dp: int) -> Deployment | None:
    spread = {"dp": dp, "enable_dp_attention": True, "chunked_prefill_size": CHUNK} if dp > 1 else {}
    launches = (Deployment(release, runner, tp=tp, ep=ep, disable_shared_experts_fusion=True, **spread) for runner in BUILDERS)
    judged = ((launch, judge(checkpoint, launch)) for launch in launches)
    return next(
        (launch for launch, found in judged if found.admission.accepted and found.routing.known and found.routing.expert_kinds), None
    )


def built_rank(worker: Worker, question: RankQuestion, folder: Folders) -> ModelAnswer:
    return worker.model(folder(question.checkpoint), question.deployment, question.rank)


def judge_rank(question: RankQuestion, real: ModelAnswer) -> Disagreement | None:
    """Where the release cuts the experts otherwise, or stops (or does not stop) where the model says nothing (or does)."""
    judgement = judge(question.checkpoint, question.deployment)
    found = [finding for finding in judgement.verdict.findings if finding.id in UNEVEN]
    failure = real.failure or (None if real.accepted else {"error": real.error, "message": real.message, **_place(real)})
    if failure is not None and failure["function"] in SHAPE_CHECKS:
        return None  # the scale blocks of a linear layer, which no rule looks at
    if failure is not None or found:
        said = f"{failure['error']}: {failure['message']} ({failure['file']}: {failure['function']})" if failure else "builds it"
        same = failure is not None and any(_is_about(finding, failure) for finding in found)
        differences = () if same else (("rank", "; ".join(f"{f.observed} ({f.source})" for f in found) or "builds it", said),)
    else:
        differences = tuple(_shares(question, judgement.admission.ep_size, real))
    return Disagreement(question.deployment.release.version, question.checkpoint.name, str(question), differences) if differences else None


def _place(real: ModelAnswer) -> dict:
    return {"file": real.file, "function": real.function}


def _is_about(finding: Finding, failure: dict) -> bool:
    """The same exception, raised in the same file; where that is a helper which everything calls, in the same words too."""
    same = finding.observed.startswith(failure["error"]) and failure["file"] in finding.source
    return same and (failure["function"] != "ensure_divisibility" or failure["message"] in finding.observed)


def _shares(question: RankQuestion, ep: int, real: ModelAnswer) -> Iterator[tuple[str, object, object]]:
    """(what, the model's, the release's) for each MoE layer that is cut otherwise."""
    geometry, tp, rank = question.checkpoint.geometry, question.deployment.tp, question.rank
    moe_tp = tp // ep
    try:
        experts, width = geometry.local_experts(ep), geometry.local_intermediate(tp, ep)
    except UsageError as error:  # a rule that should have said so does not
        yield "share", str(error), "builds it"
        return
    first = rank // moe_tp * experts
    share = {
        "num_local_experts": experts,
        "intermediate_size_per_partition": width,
        "experts": list(range(first, first + experts)),
        "moe_ep_size": ep,
        "moe_ep_rank": rank // moe_tp,
        "moe_tp_size": moe_tp,
        "moe_tp_rank": rank % moe_tp,
    }
    for layer in real.experts:
        built = {name: layer[name] for name in share}
        if built != share:
            yield layer["name"], share, built
