"""The same question asked many times, for the figures and explorers: one checkpoint over releases, runners, GPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product

from helpers.checkpoint import Checkpoint, open_checkpoint
from helpers.deployment import GPUS, RELEASES, Deployment, Gpu, a2a_backends, deployment, release, runners
from helpers.paths import CHECKPOINTS
from helpers.stages.admit import Admission, admit
from helpers.stages.detect import Detection, detect
from helpers.stages.verdict import judge

VERSIONS = tuple(known.version for known in RELEASES)
# The runners that may meet an NVFP4 checkpoint on an NVIDIA GPU.
RUNNERS = (
    "auto",
    "flashinfer_cutedsl",
    "flashinfer_cutlass",
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "cutlass",
    "marlin",
    "triton",
    "deep_gemm",
)
GPU_KEYS = tuple(known.key for known in GPUS)


def bundled() -> dict[str, Checkpoint]:
    """Every checkpoint of data/checkpoints by name."""
    return {folder.name: open_checkpoint(folder) for folder in sorted(CHECKPOINTS.iterdir()) if (folder / "config.json").is_file()}


def detections(checkpoints: Mapping[str, Checkpoint]) -> dict[tuple[str, str], Detection]:
    """(checkpoint, release) -> what it is called there."""
    return {(name, r.version): detect(checkpoint, r) for (name, checkpoint), r in product(checkpoints.items(), RELEASES)}


def admission(checkpoint: Checkpoint, asked: Deployment) -> Admission:
    """Do the arguments of a deployment pass for this checkpoint, and what do they become?"""
    return admit(checkpoint, detect(checkpoint, asked.release), asked)


def admitted(checkpoint: Checkpoint, **values: object) -> Admission:
    """The same for plain values, as ``deployment`` takes them: ``admitted(mixed, sglang="0.5.15", runner="flashinfer_cutedsl")``."""
    return admission(checkpoint, deployment(**values))


def admissions(
    checkpoint: Checkpoint, asked: Deployment, names: Iterable[str] = RUNNERS, a2as: Iterable[str] = ("none",), gpus: Iterable[Gpu] = ()
) -> dict[tuple[str, str, str, str], Admission]:
    """(release, runner, a2a, GPU) -> admission, for every release and whatever of the rest that release knows."""
    found = {}
    for known, runner, a2a, gpu in product(RELEASES, names, a2as, gpus or (asked.gpu,)):
        if runner in runners(known) and a2a in a2a_backends(known):
            other = replace(asked, release=known, runner=runner, a2a=a2a, gpu=gpu)
            found[known.version, runner, a2a, gpu.key] = admission(checkpoint, other)
    return found


def accepted(checkpoint: Checkpoint) -> dict[tuple[str, str], str]:
    """(runner, release) -> "accepted", "refused", or "absent" where the release does not know the runner. One B200, no all-to-all."""
    found = admissions(checkpoint, Deployment())
    states = {}
    for runner, version in product(RUNNERS, VERSIONS):
        one = found.get((version, runner, "none", Deployment().gpu.key))
        states[runner, version] = "absent" if one is None else "accepted" if one.accepted else "refused"
    return states


def auto_runner(checkpoint: Checkpoint) -> dict[tuple[str, str], str]:
    """(GPU, release) -> what the runner "auto" becomes there, or "refused"."""
    found = admissions(checkpoint, Deployment(), ["auto"], gpus=GPUS)
    return {(gpu, version): one.runner if one.accepted else "refused" for (version, _, _, gpu), one in found.items()}


def over_releases(checkpoint: Checkpoint, asked: Deployment) -> dict[str, str]:
    """Release -> "accepted" or "refused" for the deployment asked, on every release that knows its runner and all-to-all."""
    found = admissions(checkpoint, asked, [asked.runner], [asked.a2a])
    return {version: "accepted" if one.accepted else "refused" for (version, *_), one in found.items()}


def as_matrix(lanes: Mapping[str, Mapping[str, str]]) -> dict[str, dict[tuple[str, str], str]]:
    """A timeline's lanes as one panel of a matrix, for the table beside it."""
    return {"": {(lane, version): state for lane, states in lanes.items() for version, state in states.items()}}


def outcomes(checkpoint: Checkpoint, asked: Deployment) -> dict[tuple[str, str], str]:
    """(runner, release) -> outcome of the deployment asked with that runner on that release, where both exist."""
    names = dict.fromkeys([asked.runner, *RUNNERS])
    found = {}
    for runner, known in product(names, RELEASES):
        if runner in runners(known) and asked.a2a in a2a_backends(known):
            found[runner, known.version] = judge(checkpoint, replace(asked, release=known, runner=runner)).verdict.outcome
    return found


def changed(asked: Deployment, name: str, value: str | None) -> Deployment:
    """The deployment with one of its plain values changed, as an Alternative names it; "env" gains a variable, ``K=V``."""
    if name == "sglang":
        return replace(asked, release=release(value))
    if name == "env":
        variable, _, text = value.partition("=")
        return replace(asked, env=tuple(sorted((asked.environment | {variable: text}).items())))
    return replace(asked, **{name: value})
