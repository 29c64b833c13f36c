"""What a checkpoint is deployed on: an SGLang release, the flags that steer its MoE path, a GPU, and environment variables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from helpers.deployment.flags import a2a_backends, quantizations, runners
from helpers.deployment.flags import choices as flag_choices
from helpers.deployment.gpus import DEFAULT_GPU, Gpu, gpu
from helpers.deployment.releases import DEFAULT_RELEASE, Release, release
from helpers.errors import UsageError, unknown


@dataclass(frozen=True)
class Deployment:
    """Flags as SGLang's own parser would hold them, before anything is resolved. ``None`` means: not given.

    runner, a2a, quantization: ``--moe-runner-backend``, ``--moe-a2a-backend``, ``--quantization``. tp, ep, dp: sizes; dp counts
    attention groups inside tp when ``enable_dp_attention``, else replicas. env: (name, value) pairs, sorted. model: what a launch
    line named as its model. unexamined: flags of that line which the release knows and no rule here reads.
    """

    release: Release = DEFAULT_RELEASE
    runner: str = "auto"
    a2a: str = "none"
    quantization: str | None = None
    tp: int = 1
    ep: int = 1
    dp: int = 1
    enable_dp_attention: bool = False
    gpu: Gpu = DEFAULT_GPU
    env: tuple[tuple[str, str], ...] = ()
    deepep_mode: str = "auto"
    max_prefill_tokens: int | None = None
    chunked_prefill_size: int | None = None
    cuda_graph_max_bs: int | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_moe_runner_backend: str | None = None
    speculative_moe_a2a_backend: str | None = None
    disable_shared_experts_fusion: bool = False
    model: str | None = field(default=None, compare=False)
    unexamined: tuple[str, ...] = field(default=(), compare=False)

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.env)


# Which sizes may be what: tokens and batch sizes may be -1 in SGLang (no limit), the parallel sizes may not.
_POSITIVE = ("tp", "ep", "dp", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "cuda_graph_max_bs")
_INTEGER = ("max_prefill_tokens", "chunked_prefill_size")


def deployment(
    *,
    sglang: str | Release = DEFAULT_RELEASE,
    runner: str = "auto",
    a2a: str = "none",
    quantization: str | None = None,
    gpu: str | Gpu = DEFAULT_GPU,
    env: str | Mapping[str, str] | tuple = (),
    **flags,
) -> Deployment:
    """A validated Deployment from plain values, as the command line and the notebooks hold them.

    ``quantization`` "" and None both mean: no flag. ``env``: "K=V,K=V", a mapping, or pairs. ``flags``: any other field of
    Deployment. UsageError, with the nearest known names, for what the release does not know; a combination that SGLang itself
    judges (ep that does not divide tp) is not an error here.
    """
    chosen = release(sglang) if isinstance(sglang, str) else sglang
    _known("MoE runner", runner, runners(chosen), chosen)
    _known("a2a backend", a2a, a2a_backends(chosen), chosen)
    quantization = quantization or None
    if quantization is not None:
        _known("quantization", quantization, quantizations(chosen), chosen)
    if "deepep_mode" in flags:
        _known("DeepEP mode", flags["deepep_mode"], flag_choices(chosen, "deepep_mode"), chosen)
    for name, known in (("speculative_moe_runner_backend", runners), ("speculative_moe_a2a_backend", a2a_backends)):
        if flags.get(name) is not None:
            _known(name, flags[name], known(chosen), chosen)
    names = [entry.name for entry in fields(Deployment)]
    for name, value in flags.items():
        if name not in names:
            raise unknown("deployment value", name, names)
        if value is not None and name in _POSITIVE + _INTEGER:
            flags[name] = _integer(name, value, minimum=1 if name in _POSITIVE else -1)
    return Deployment(
        release=chosen,
        runner=runner,
        a2a=a2a,
        quantization=quantization,
        gpu=_gpu(gpu),
        env=_pairs(env),
        **flags,
    )


def _gpu(value: str | Gpu) -> Gpu:
    return gpu(value) if isinstance(value, str) else value


def _known(what: str, value: object, known: tuple[str, ...], chosen: Release) -> None:
    if value not in known:
        raise unknown(f"{what} (SGLang {chosen})", value, known)


def _integer(name: str, value: object, minimum: int) -> int:
    digits = re.fullmatch(r"-?\d+", str(value)) if not isinstance(value, bool) else None
    if digits is None or int(str(value)) < minimum:
        raise UsageError(f"{name} is {value!r}: give a whole number of at least {minimum}")
    return int(str(value))


def _pairs(env: str | Mapping[str, str] | tuple) -> tuple[tuple[str, str], ...]:
    """Environment variables as sorted pairs, so that two deployments that mean the same are equal."""
    if isinstance(env, Mapping):
        env = tuple(env.items())
    if isinstance(env, str):
        env = tuple(entry.strip().partition("=")[::2] if "=" in entry else (entry, None) for entry in env.split(",") if entry.strip())
    for name, value in env:
        if value is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"environment variable {name!r}: write NAME=VALUE, several separated by commas")
    return tuple(sorted(dict(env).items()))
