"""One routed checkpoint on one deployment, as the rules about it read it.

`Case` gathers what the rules of consequences.py and load.py ask for: the resolved runner and all-to-all, the GPU, the kinds of
expert blocks, and the block's geometry. Nothing here decides.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from helpers.checkpoint import Checkpoint, ExpertGeometry
from helpers.deployment import Deployment, Release
from helpers.errors import InputError
from helpers.stages.detect import Detection
from helpers.stages.methods import NVFP4_EXPERTS, ONLINE_EXPERTS
from helpers.stages.route import Routing

# All-to-all backends whose expert blocks are DeepEPMoE. layers/moe/ep_moe/layer.py: get_moe_impl_class.
DEEPEP_CLASS = frozenset({"deepep", "deepep_v2", "mooncake", "mori", "nixl", "pplx"})

# (all-to-all, runner) pairs with a fused function, and the first release of each. layers/moe/moe_runner/*: register_fused_func.
FUSED_FUNCTIONS = {
    ("none", "flashinfer_cutedsl"): "0.5.11",
    ("none", "flashinfer_trtllm"): "0.5.11",
    ("none", "flashinfer_trtllm_routed"): "0.5.11",
    ("none", "marlin"): "0.5.11",
    ("none", "flashinfer_cutlass"): "0.5.15",
    ("flashinfer", "flashinfer_cutedsl"): "0.5.13",
    ("flashinfer", "flashinfer_cutlass"): "0.5.15",
    ("flashinfer", "flashinfer_trtllm_routed"): "0.5.15",
    ("flashinfer", "flashinfer_trtllm"): "0.5.19",
    ("deepep", "flashinfer_cutedsl"): "0.5.13",
}

# Runners that exist only as fused functions; the others (triton, deep_gemm …) have a core of their own.
FUSED_ONLY = frozenset({"flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass", "marlin"})

_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True)
class Shape:
    """What the load rules need of a checkpoint's geometry. problem: why it is not known, "" when it is."""

    geometry: ExpertGeometry | None
    problem: str
    swiglu_limit: float | None


@lru_cache(maxsize=256)
def shape_of(checkpoint: Checkpoint) -> Shape:
    try:
        geometry, problem = checkpoint.geometry, ""
    except InputError as error:
        geometry, problem = None, str(error)
    if geometry is None and not problem:
        problem = "config.json names no routed experts"
    return Shape(geometry, problem, checkpoint.text_config.get("swiglu_limit"))


@dataclass(frozen=True, eq=False)
class Case:
    """The facts of one (checkpoint, deployment) pair after admission."""

    checkpoint: Checkpoint
    detection: Detection
    admission: object
    routing: Routing
    deployment: Deployment

    @cached_property
    def release(self) -> Release:
        return self.deployment.release

    @cached_property
    def runner(self) -> str:
        """``server_args.moe_runner_backend`` after resolution; "auto" when nothing picked one."""
        return self.admission.runner

    @cached_property
    def a2a(self) -> str:
        return self.admission.a2a

    @cached_property
    def capability(self) -> tuple[int, int]:
        return self.deployment.gpu.capability

    @cached_property
    def blackwell(self) -> bool:
        """SGLang's is_blackwell_supported: SM10x, SM110 and SM12x."""
        return self.capability[0] in (10, 11, 12)

    @cached_property
    def hopper_or_ampere(self) -> bool:
        return (8, 0) <= self.capability < (10, 0)

    @cached_property
    def kinds(self) -> frozenset[tuple[str | None, str]]:
        """(algorithm, method) of the expert blocks."""
        return self.routing.expert_kinds

    @cached_property
    def nvfp4(self) -> bool:
        return any(method in (NVFP4_EXPERTS, ONLINE_EXPERTS) for _, method in self.kinds)

    @cached_property
    def group_size(self) -> int | None:
        """Values that share one block scale; None where nothing is quantised, or in no such groups."""
        return self.routing.spec.group_size if self.routing.spec is not None else None

    @cached_property
    def block(self) -> tuple[int, ...] | None:
        """(rows, columns) that share one scale of block FP8; None without."""
        return self.routing.spec.block if self.routing.spec is not None else None

    @cached_property
    def layer_class(self) -> str:
        return "DeepEPMoE" if self.a2a in DEEPEP_CLASS else "FusedMoE"

    @cached_property
    def cutedsl_v1(self) -> bool:
        """CuTe DSL over DeepEP: other weight layout, other kernels. layers/moe/utils.py: is_flashinfer_cutedsl_v1_path."""
        return self.runner == "flashinfer_cutedsl" and self.a2a == "deepep"

    @cached_property
    def deep_gemm(self) -> bool:
        """ENABLE_JIT_DEEPGEMM: Hopper and data-centre Blackwell, unless switched off. deep_gemm_wrapper/configurer.py."""
        return self.capability[0] in (9, 10) and self.switched("SGLANG_ENABLE_JIT_DEEPGEMM", default=True)

    def switched(self, variable: str, *, default: bool = False) -> bool:
        """A boolean environment variable: set by the user, else by the server for itself."""
        value = self.deployment.environment.get(variable, self.admission.env.get(variable))
        return default if value is None else value.lower() in _TRUE

    @cached_property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return max(1, self.deployment.tp // max(1, self.admission.ep_size))

    @cached_property
    def ep(self) -> int:
        return self.admission.ep_size

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.checkpoint)

    @cached_property
    def nvfp4_runner(self) -> str:
        """The runner an NVFP4 block makes for itself, "" when it makes none.

        modelopt_quant.py: ModelOptNvFp4FusedMoEMethod.create_moe_runner.
        """
        if self.runner == "auto":
            return "marlin" if self.hopper_or_ampere and self.release.at_least("0.5.13") else "flashinfer_trtllm"
        if self.runner == "flashinfer_cutlass" and not self.release.at_least("0.5.15"):
            return ""
        if self.cutedsl_v1 and not self.release.at_least("0.5.13"):
            return ""
        if self.runner == "cutlass" and self.release.version in ("0.5.15", "0.5.15.post1"):
            return ""  # cutlass_moe_fp4 is called directly
        return self.runner

    def runner_of(self, method: str) -> str:
        """The runner an expert block with this method ends with; "" when it makes none (and calls its kernel directly)."""
        if method in (NVFP4_EXPERTS, ONLINE_EXPERTS):
            return self.nvfp4_runner
        if method == "ModelOptFp8MoEMethod":
            cutlass = self.runner == "flashinfer_cutlass" and self.release.at_least("0.5.15")
            return "flashinfer_cutlass" if cutlass else "triton"
        if method == "Fp8MoEMethod":
            if self.runner in ("deep_gemm", "triton", "flashinfer_trtllm", "flashinfer_trtllm_routed"):
                return self.runner
            if self.runner == "auto":
                return "deep_gemm" if self.deep_gemm else "triton"
            falls_back = self.runner in ("flashinfer_cutlass", "flashinfer_cutedsl") and self.release.at_least("0.5.20")
            return "triton" if falls_back else ""
        if method == "UnquantizedFusedMoEMethod":
            if self.runner == "flashinfer_cutlass" and not self.release.at_least("0.5.15"):
                return ""
            own = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass", "deep_gemm", "triton_kernel")
            return self.runner if self.runner in own else "triton"
        return ""

    def deprecate_flag(self, method: str) -> bool:
        """DeepEPMoE.deprecate_flag: does the block take FusedMoE's path? layers/moe/ep_moe/layer.py: DeepEPMoE.__init__."""
        release, name = self.release, self.routing.quantization
        if self.a2a == "deepep_v2" and release.at_least("0.5.19"):
            return True
        if self.deep_gemm and self.routing.quant_config in ("Fp8Config", "HybridFp8NvFp4Config"):
            return True
        if self.deep_gemm and release.at_least("0.5.12") and self.switched("SGLANG_DEEPEP_BF16_DISPATCH"):
            return True
        cutedsl = self.runner_of(method) if release.at_least("0.5.23") else self.runner
        if cutedsl != "flashinfer_cutedsl" or not release.at_least("0.5.13"):
            return False
        names = ("modelopt_fp4", "modelopt_mixed") if release.at_least("0.5.16") else ("modelopt_fp4",)
        return name in names or (name == "nvfp4_online" and release.version == "0.5.17")


def backend(runner: str) -> str:
    """How SGLang prints a runner in its messages."""
    return f"MoeRunnerBackend.{runner.upper()}"
