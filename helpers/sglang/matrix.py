"""The questions that the model (helpers.stages) and the real releases are both asked.

A question is a distinct (checkpoint, deployment), and a deployment has a release. Three tables are asked whole for every
checkpoint, a fourth of rare launches for one of each kind, and a sample of the product of everything else; all of it is the same
on every run.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from helpers.checkpoint import Checkpoint, known_checkpoints, open_checkpoint
from helpers.deployment import GPUS, Deployment, Release, a2a_backends, gpu, quantizations, runners
from helpers.deployment.flags import choices
from helpers.stages.detect import detect

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

# All-to-all backends whose buffers must hold the largest forward: (the variable of its size, all-to-all, runner).
BUFFERS = (
    ("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "flashinfer", "flashinfer_cutedsl"),
    ("SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", "megamoe", "auto"),
    ("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "deepep_v2", "auto"),
    ("SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "pplx", "auto"),
    ("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "mori", "triton"),
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
    subjects = tuple(subjects)
    asked = {Question(checkpoint, deployment): None for checkpoint in subjects for deployment in _deployments(release, checkpoint, sample)}
    asked |= {Question(checkpoint, deployment): None for checkpoint in _unlike(release, subjects) for deployment in _rare(release)}
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
    draw = random.Random(f"{release}/{checkpoint.name}")
    for _ in range(sample):
        yield _drawn(draw, release, flags)


def _unlike(release: Release, subjects: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
    """The first checkpoint of each architecture and quantization: what rules about launches can tell apart."""
    return {(checkpoint.architecture, detect(checkpoint, release).quantization): checkpoint for checkpoint in reversed(subjects)}.values()


def _rare(release: Release) -> Iterator[Deployment]:
    """Launches that one rule each waits for, and that a drawn one seldom is."""
    spread = {"tp": 8, "dp": 8, "enable_dp_attention": True}
    for mode in ("normal", "low_latency"):
        yield Deployment(release, "flashinfer_cutedsl", "deepep", deepep_mode=mode, **spread)
    yield Deployment(release, "flashinfer_cutedsl", "deepep", quantization="mxfp8", **spread)
    for variable in VARIABLES:
        for a2a in MAIN_A2A:
            yield Deployment(release, "flashinfer_cutedsl", a2a, quantization="modelopt_fp4", env=(variable,), **spread)
    for variable in (("SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE", "1"), ("SGLANG_CUTLASS_MOE", "1")):
        for flag in ("modelopt_fp4", "fp8"):
            yield Deployment(release, quantization=flag, env=(variable,))
        yield Deployment(release, a2a="flashinfer", env=(variable,), **spread)
    w4a16 = ("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", "1")
    for value in "01":
        both = (w4a16, ("SGLANG_MOE_NVFP4_DISPATCH", value))
        yield Deployment(release, "flashinfer_cutedsl", "flashinfer", quantization="modelopt_fp4", env=both, **spread)
    for kind in choices(release, "flashinfer_a2a_dispatch_type"):
        yield Deployment(release, flashinfer_a2a_dispatch_type=kind)
        for runner in ("flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm"):
            for flag in ("modelopt_fp4", "mxfp8"):
                yield Deployment(release, runner, "flashinfer", quantization=flag, flashinfer_a2a_dispatch_type=kind, **spread)
        for variable in (w4a16, ("SGLANG_MOE_NVFP4_DISPATCH", "1")):
            sent = {"quantization": "modelopt_fp4", "flashinfer_a2a_dispatch_type": kind, "env": (variable,)}
            yield Deployment(release, "flashinfer_cutedsl", "flashinfer", **sent, **spread)
        yield Deployment(release, "deep_gemm", "flashinfer", quantization="mxfp8", flashinfer_a2a_dispatch_type=kind, **spread)
    for a2a in ("megamoe", "flashinfer_megamoe"):
        if a2a in a2a_backends(release):
            for entry in GPUS:
                yield Deployment(release, a2a=a2a, gpu=entry, **spread)
                yield Deployment(release, a2a=a2a, gpu=entry, quantization="modelopt_fp4", **spread)
            if "nvfp4_online" in quantizations(release):
                for runner in ("auto", "flashinfer_trtllm"):
                    yield Deployment(release, runner, a2a, quantization="nvfp4_online", env=(w4a16,), **spread)
    for variable, a2a, runner in BUFFERS:
        if a2a in a2a_backends(release):
            for chunk, batch, room in ((1024, 8, "128"), (2048, 8, "128"), (1024, 256, "128"), (-1, 8, "128")):
                sizes = {"chunked_prefill_size": chunk, "cuda_graph_max_bs": batch, "env": ((variable, room),)}
                yield Deployment(release, runner, a2a, quantization="modelopt_fp4", **sizes, **spread)
            sizes = {"chunked_prefill_size": 1024, "cuda_graph_max_bs": 64, "env": ((variable, "128"),)}
            yield Deployment(release, runner, a2a, quantization="modelopt_fp4", **sizes, **spread, **_SPECULATIVE)
            unused = {name: value for name, value in _SPECULATIVE.items() if name != "speculative_algorithm"}
            yield Deployment(release, runner, a2a, quantization="modelopt_fp4", **sizes, **spread, **unused)
            few = {"tp": 2, "dp": 2, "enable_dp_attention": True, "gpu": gpu("H100"), "env": ((variable, "300"),)}
            yield Deployment(release, runner, a2a, quantization="modelopt_fp4", chunked_prefill_size=256, max_prefill_tokens=256, **few)
    if "deepep_v2" in a2a_backends(release):
        yield Deployment(release, a2a="deepep_v2", chunked_prefill_size=128, cuda_graph_max_bs=16)
        yield Deployment(release, a2a="deepep_v2", tp=8, chunked_prefill_size=1024, cuda_graph_max_bs=16)
    for runner in ("auto", "triton", "flashinfer_cutedsl"):
        yield Deployment(release, runner, **_SPECULATIVE)
    for algorithm in ("NGRAM", "STANDALONE"):
        for more in ({}, spread):
            yield Deployment(release, speculative_algorithm=algorithm, speculative_num_draft_tokens=4, **more)
    yield Deployment(release, **_SPECULATIVE | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8})
    for runner in ("triton", "lora_triton"):
        if runner in runners(release):
            yield Deployment(release, speculative_moe_runner_backend=runner, **_SPECULATIVE)


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
