"""The questions that the model (helpers.stages) and the real releases are both asked.

A question is a distinct (checkpoint, deployment), and a deployment has a release. Three tables are asked whole for every
checkpoint, and a sample of the product of everything else; all of it is the same on every run.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers.checkpoint import Checkpoint, known_checkpoints, open_checkpoint
from helpers.deployment import GPUS, Deployment, Release, a2a_backends, gpu, quantizations, runners
from helpers.deployment.flags import choices

# What people give for these checkpoints, a few that contradict them, and what is converted online.
FLAGS = (
    "modelopt_fp4",
    "modelopt_mixed",
    "modelopt",
    "modelopt_fp8",
    "fp8",
    "mxfp8",
    "w4afp8",
    "compressed-tensors",
    "nvfp4_online",
    "petit_nvfp4",
    "mxfp4",
    "unquant",
)

# The ones that rules about flags and GPUs look at; every runner is asked with every all-to-all, and drawn with everything.
MAIN_RUNNERS = (
    "auto",
    "triton",
    "flashinfer_cutedsl",
    "flashinfer_cutlass",
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "cutlass",
    "marlin",
)
MAIN_A2A = ("none", "deepep", "flashinfer")

# Variables that argument rules read, with a value that is not their default.
VARIABLES = (
    ("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", "1"),
    ("SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION", "1"),
    ("SGLANG_MOE_NVFP4_DISPATCH", "1"),
    ("SGLANG_MOE_NVFP4_DISPATCH", "0"),
    ("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "4096"),
    ("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "128"),
    ("SGLANG_ENABLE_JIT_DEEPGEMM", "0"),
)


@dataclass(frozen=True)
class Question:
    checkpoint: Checkpoint
    deployment: Deployment

    def __str__(self):
        return f"{self.checkpoint.name}: {self.deployment}"


def checkpoints() -> tuple[Checkpoint, ...]:
    """Every bundled and public checkpoint."""
    return tuple(open_checkpoint(name) for name in known_checkpoints())


def argument_questions(release: Release, subjects: Iterable[Checkpoint], sample: int) -> list[Question]:
    """The questions about launches on one release; sample: how many of the whole product for each checkpoint.

    In the order that costs a worker least: by checkpoint (its configuration is parsed once), then by GPU.
    """
    asked = {Question(checkpoint, deployment): None for checkpoint in subjects for deployment in _deployments(release, checkpoint, sample)}
    gpus = [entry.key for entry in GPUS]
    return sorted(asked, key=lambda question: (question.checkpoint.name, gpus.index(question.deployment.gpu.key)))


def _deployments(release: Release, checkpoint: Checkpoint, sample: int) -> Iterator[Deployment]:
    known = runners(release)
    main = [runner for runner in MAIN_RUNNERS if runner in known]
    for runner in known:
        yield Deployment(release, runner)
        for a2a in a2a_backends(release):
            yield Deployment(release, runner, a2a, tp=8, dp=8, enable_dp_attention=True)
            if a2a in MAIN_A2A:
                yield Deployment(release, runner, a2a, tp=8)
    flags = [flag for flag in FLAGS if flag in quantizations(release)]
    for runner in main:
        for flag in flags:
            yield Deployment(release, runner, quantization=flag)
        for entry in GPUS:
            yield Deployment(release, runner, gpu=entry)
    yield from _rare(release)
    draw = random.Random(f"{release}/{checkpoint.name}")
    for _ in range(sample):
        yield _drawn(draw, release, flags)


def _rare(release: Release) -> Iterator[Deployment]:
    """Launches that one rule each waits for, and that a drawn one seldom is."""
    spread = {"tp": 8, "dp": 8, "enable_dp_attention": True}
    for mode in ("normal", "low_latency"):
        yield Deployment(release, "flashinfer_cutedsl", "deepep", deepep_mode=mode, **spread)
    for variable in VARIABLES:
        for a2a in MAIN_A2A:
            yield Deployment(release, "flashinfer_cutedsl", a2a, quantization="modelopt_fp4", env=(variable,), **spread)
    for kind in choices(release, "flashinfer_a2a_dispatch_type"):
        for runner in ("flashinfer_cutedsl", "flashinfer_cutlass"):
            yield Deployment(release, runner, "flashinfer", quantization="modelopt_fp4", flashinfer_a2a_dispatch_type=kind, **spread)
    for entry in GPUS:
        yield Deployment(release, a2a="megamoe", gpu=entry, **spread)
    for runner in ("auto", "triton", "flashinfer_cutedsl"):
        yield Deployment(release, runner, **_SPECULATIVE)


def _drawn(draw: random.Random, release: Release, flags: list[str]) -> Deployment:
    """Any combination, the ordinary values more often than the others."""
    tp = draw.choice((1, 2, 4, 8, 16))
    attention = draw.random() < 0.3
    speculative = draw.random() < 0.1
    return Deployment(
        release=release,
        runner=draw.choice(runners(release)),
        a2a=draw.choice(("none", *a2a_backends(release))),
        quantization=draw.choice((None, None, None, *flags)),
        tp=tp,
        ep=draw.choice((1, 1, tp, tp, 2)),
        dp=draw.choice((1, tp, 2)) if attention else draw.choice((1, 1, 1, 2)),
        enable_dp_attention=attention,
        gpu=draw.choice((gpu("B200"), gpu("B200"), *GPUS)),
        env=(draw.choice(VARIABLES),) if draw.random() < 0.2 else (),
        deepep_mode=draw.choice(("auto", "auto", "low_latency", "normal")),
        max_prefill_tokens=draw.choice((None, None, 2048, 32768)),
        chunked_prefill_size=draw.choice((None, None, None, 512, 65536, -1)),
        cuda_graph_max_bs=draw.choice((None, None, None, 16, 2048)),
        disable_shared_experts_fusion=draw.random() < 0.1,
        **(_SPECULATIVE if speculative else {}),
    )


_SPECULATIVE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
