"""What a checkpoint is deployed on: an SGLang release, the flags that steer its MoE path, a GPU, and environment variables."""

import re
from dataclasses import dataclass, field, fields

from helpers.deployment.flags import a2a_backends, deepep_modes, dispatch_types, quantizations, runners
from helpers.deployment.gpus import DEFAULT_GPU, Gpu
from helpers.deployment.releases import DEFAULT_RELEASE, Release
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
    flashinfer_a2a_dispatch_type: str | None = None
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

    def to_dict(self) -> dict:
        """Plain JSON types under the notebooks' parameter names: what result.json holds and what two runs are compared by."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        release, gpu = plain.pop("release"), plain.pop("gpu")
        return {"sglang": release.version, **plain, "gpu": gpu.key, "env": self.environment}

    def __str__(self) -> str:
        """One line: release, GPU, and what differs from the defaults."""
        default = Deployment()
        given = (entry.name for entry in fields(self) if entry.compare and entry.name not in ("release", "gpu", "env"))
        changed = [f"{name}={getattr(self, name)}" for name in given if getattr(self, name) != getattr(default, name)]
        return ", ".join([f"SGLang {self.release} on {self.gpu}", *changed, *(f"{name}={value}" for name, value in self.env)])


_NAMES = {
    "runner": ("MoE runner", runners),
    "a2a": ("all-to-all backend", a2a_backends),
    "quantization": ("quantization", quantizations),
    "deepep_mode": ("DeepEP mode", deepep_modes),
    "flashinfer_a2a_dispatch_type": ("FlashInfer dispatch type", dispatch_types),
    "speculative_moe_runner_backend": ("MoE runner", runners),
    "speculative_moe_a2a_backend": ("all-to-all backend", a2a_backends),
}
# The least value of each number. Token counts may be -1 in SGLang (no limit).
_LEAST = {
    "tp": 1,
    "ep": 1,
    "dp": 1,
    "max_prefill_tokens": -1,
    "chunked_prefill_size": -1,
    "cuda_graph_max_bs": 1,
    "speculative_num_steps": 0,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 1,
}


def checked(release: Release, gpu: Gpu, env: tuple[tuple[str, str], ...], **values) -> Deployment:
    """A Deployment whose every value this release knows; values are fields of Deployment, text or numbers. UsageError otherwise."""
    names = [entry.name for entry in fields(Deployment)]
    for name, value in values.items():
        if name not in names:
            raise unknown("deployment value", name, names)
        if value is None:
            continue
        if name in _NAMES:
            what, known = _NAMES[name]
            if value not in known(release):
                raise unknown(f"{what} of SGLang {release}", value, known(release))
        if name in _LEAST:
            values[name] = _integer(name, value)
    return Deployment(release=release, gpu=gpu, env=env, **values)


def _integer(name: str, value: object) -> int:
    digits = re.fullmatch(r"-?\d+", str(value))
    if digits is None or int(str(value)) < _LEAST[name]:
        raise UsageError(f"{name} is {value!r}: give a whole number of at least {_LEAST[name]}")
    return int(str(value))
