"""Which quantization a MoE runner accepts: the allowlists of ``_handle_moe_kernel_config``, release by release.

They compare names (``server_args.quantization``), not kernels: PR 30443 was a name missing from one of these lists.
"""

from dataclasses import dataclass
from functools import cache

from helpers.deployment import Release
from helpers.stages.admission.resolution import Resolution


@dataclass(frozen=True)
class Allowlist:
    """From release ``first`` on, the runner accepts these names; ``says`` is the second line of its error. hybrid: or nvfp4_moe_meta."""

    first: str
    accepts: tuple[str | None, ...]
    says: str
    hybrid: bool = False


_TRTLLM_NAMES = ("modelopt_fp4", "fp8", "mxfp8", "modelopt_fp8", "modelopt_mixed", "compressed-tensors", None)
_TRTLLM = (
    Allowlist(
        "0.5.11",
        _TRTLLM_NAMES,
        "FlashInfer TRTLLM MOE supports only: 'modelopt_fp4', 'fp8', 'modelopt_fp8', 'modelopt_mixed', 'compressed-tensors', "
        "or bfloat16 (None).",
    ),
    Allowlist(
        "0.5.14",
        (*_TRTLLM_NAMES, "nvfp4_online"),
        "FlashInfer TRTLLM MOE supports only: 'modelopt_fp4', 'nvfp4_online', 'fp8', 'modelopt_fp8', 'modelopt_mixed', "
        "'compressed-tensors', or bfloat16 (None).",
    ),
)

ALLOWLISTS: dict[str, tuple[Allowlist, ...]] = {
    "flashinfer_cutlass": (
        Allowlist(
            "0.5.11",
            ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed", None),
            "FlashInfer Cutlass MOE supports only: 'modelopt_fp4', 'modelopt_fp8', 'modelopt_mixed', or bfloat16 (None).",
        ),
    ),
    "flashinfer_cutedsl": (
        Allowlist("0.5.11", ("modelopt_fp4",), "FlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4'."),
        Allowlist(
            "0.5.15",
            ("modelopt_fp4",),
            "FlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4' or hybrid NVFP4 models.",
            hybrid=True,
        ),
        Allowlist(
            "0.5.16",
            ("modelopt_fp4", "modelopt_mixed"),
            "FlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4', 'modelopt_mixed' (with NVFP4 MoE layers), "
            "or hybrid NVFP4 models.",
            hybrid=True,
        ),
        Allowlist(
            "0.5.18",
            ("modelopt_fp4", "modelopt_mixed", "nvfp4_online"),
            "FlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4', 'modelopt_mixed' (with NVFP4 MoE layers), "
            "'nvfp4_online', or hybrid NVFP4 models.",
            hybrid=True,
        ),
    ),
    "flashinfer_trtllm": _TRTLLM,
    "experimental_sgl_trtllm": _TRTLLM,
    "flashinfer_trtllm_routed": (
        Allowlist(
            "0.5.11",
            ("fp8", "mxfp8", "modelopt_fp4", None),
            "FlashInfer TRTLLM routed MOE supports only: 'fp8', 'mxfp8', 'modelopt_fp4', or bfloat16 (None).",
        ),
        Allowlist(
            "0.5.14",
            ("fp8", "mxfp8", "modelopt_fp4", "nvfp4_online", None),
            "FlashInfer TRTLLM routed MOE supports only: 'fp8', 'mxfp8', 'modelopt_fp4', 'nvfp4_online', or bfloat16 (None).",
        ),
        Allowlist(
            "0.5.16",
            ("fp8", "mxfp8", "modelopt_fp4", "modelopt_mixed", "nvfp4_online", None),
            "FlashInfer TRTLLM routed MOE supports only: 'fp8', 'mxfp8', 'modelopt_fp4', 'modelopt_mixed', 'nvfp4_online', "
            "or bfloat16 (None).",
        ),
        Allowlist(
            "0.5.23",
            ("fp8", "mxfp8", "modelopt_fp4", "modelopt_mixed", "nvfp4_online", "minimax_m3_nvfp4", None),
            "FlashInfer TRTLLM routed MOE supports only: 'fp8', 'mxfp8', 'modelopt_fp4', 'modelopt_mixed', 'nvfp4_online', "
            "'minimax_m3_nvfp4', or bfloat16 (None).",
        ),
    ),
}

EP_MESSAGE = "The expert parallel size must be 1 or the same as the tensor parallel size"
_LORA_RUNNERS = ("lora_triton", "lora_cutedsl", "lora_marlin")


@cache
def allowlist(runner: str, release: Release) -> Allowlist | None:
    """The list of a runner in a release, None for a runner without one."""
    lists = [entry for entry in ALLOWLISTS.get(runner, ()) if release.at_least(entry.first)]
    return lists[-1] if lists else None


def kernel_rules(r: Resolution) -> None:
    """What the quantization does to the runner, then whether the runner accepts the quantization. _handle_moe_kernel_config."""
    _quantization_picks_runner(r)
    runner = r.runner
    accepted = allowlist(runner, r.release)
    if accepted is not None:
        question = f"is the quantization in {runner}'s list?"
        fits = r.quantization in accepted.accepts or (accepted.hybrid and r.facts.hybrid_nvfp4)
        r.check(
            "kernel.quantization",
            fits,
            f"Invalid quantization '{r.quantization}'. \n{accepted.says}",
            question,
            "server_args.quantization",
            r.quantization,
        )
    if runner in ("flashinfer_cutlass", "flashinfer_cutedsl"):
        r.check("kernel.ep", r.ep in (1, r.tp), EP_MESSAGE, "is ep 1 or tp?", "--ep-size, --tp-size", f"{r.ep}, {r.tp}")
    if runner == "flashinfer_cutedsl":
        _cutedsl_a2a(r)
    if (runner in ALLOWLISTS and runner != "flashinfer_cutlass") or runner in _LORA_RUNNERS:
        r.decide("fusion", "disable_shared_experts_fusion", True, "may shared experts be fused into the experts?", "runner", runner)
    if not r.release.at_least("0.5.18") and r.switch("SGLANG_CUTLASS_MOE"):
        fits = r.quantization in ("fp8", "mxfp8")
        message = "cutlass MoE is only supported with fp8/mxfp8 quantization"
        r.check("cutlass_variable", fits, message, "is it fp8, as SGLANG_CUTLASS_MOE needs?", "server_args.quantization", r.quantization)
        r.decide("cutlass_variable", "runner", "cutlass", "does a variable pick the runner?", "SGLANG_CUTLASS_MOE", "1")
    if r.runner == "cutlass" and r.quantization in ("fp8", "mxfp8"):
        r.check("kernel.fp8_ep", r.ep == 1, "FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1", "is ep 1?", "--ep-size", r.ep)


def _quantization_picks_runner(r: Resolution) -> None:
    rule = "kernel_constraints"
    if r.quantization == "nvfp4_online" and r.release.at_least("0.5.14"):
        _nvfp4_online(r, rule)
    if r.quantization == "mxfp8":
        _mxfp8(r, rule)
    if r.runner == "auto" and r.quantization == "modelopt_fp4" and r.gpu.is_sm120 and r.release.at_least("0.5.13"):
        r.decide(
            rule, "runner", "flashinfer_cutlass", "which MoE runner does auto mean here?", "GPU, quantization", f"{r.gpu}, modelopt_fp4"
        )


def _nvfp4_online(r: Resolution, rule: str) -> None:
    """Quantised while it is loaded: data-centre Blackwell and a few runners only."""
    question = "can this GPU and runner take nvfp4_online?"
    if not r.gpu.is_sm100:
        message = "--quantization nvfp4_online is supported only on NVIDIA Blackwell SM100/SM103 GPUs."
        r.refuse("kernel_constraints.online_gpu", "ValueError", message, question, "GPU", r.gpu)
    megamoe = r.release.at_least("0.5.23") and r.a2a == "flashinfer_megamoe" and r.switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
    fits = ["flashinfer_trtllm", "flashinfer_trtllm_routed"]
    if r.release.at_least("0.5.18"):
        fits.append("flashinfer_cutedsl")
    if megamoe:
        fits.append("flashinfer_megamoe")
    if r.runner == "auto":
        runner = "flashinfer_megamoe" if megamoe else "flashinfer_trtllm"
        r.decide(rule, "runner", runner, "which MoE runner does auto mean here?", "--quantization", "nvfp4_online")
    elif r.runner not in fits:
        message = "--quantization nvfp4_online supports only --moe-runner-backend flashinfer_trtllm or flashinfer_trtllm_routed"
        if r.release.at_least("0.5.23"):
            message += (
                ", or flashinfer_cutedsl; flashinfer_megamoe requires --moe-a2a-backend flashinfer_megamoe and "
                "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1."
            )
        else:
            message += ", or flashinfer_cutedsl." if r.release.at_least("0.5.18") else "."
        r.refuse("kernel_constraints.online_runner", "ValueError", message, question, "runner", r.runner)


def _mxfp8(r: Resolution, rule: str) -> None:
    """A runner that cannot take MXFP8 is replaced, with a warning in the log only."""
    megamoe = r.release.at_least("0.5.20")
    default = "flashinfer_megamoe" if megamoe and r.a2a == "flashinfer_megamoe" else "flashinfer_trtllm"
    fits = ["cutlass", "flashinfer_trtllm", "flashinfer_trtllm_routed"]
    if r.release.at_least("0.5.16"):
        fits.append("deep_gemm")
    if megamoe:
        fits.append("flashinfer_megamoe")
    if r.runner not in fits:
        r.decide(rule, "runner", default, "can this runner take mxfp8?", "runner", r.runner)


def _cutedsl_a2a(r: Resolution) -> None:
    if r.release.at_least("0.5.13"):
        fits = ("none", "deepep", "flashinfer")
        message = f"flashinfer_cutedsl supports moe_a2a_backend='none', 'deepep', or 'flashinfer', got '{r.a2a}'."
    else:
        fits = ("none", "deepep")
        message = (
            f"flashinfer_cutedsl supports moe_a2a_backend='none' (standard path) or 'deepep' (DeepEP low-latency path), got '{r.a2a}'."
        )
    r.check("kernel.a2a", r.a2a in fits, message, "can flashinfer_cutedsl use this all-to-all?", "--moe-a2a-backend", r.a2a)
    per_token = r.quantization == "nvfp4_online" or r.switch("SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION")
    if r.release.at_least("0.5.18") and r.a2a == "deepep" and per_token:
        message = "flashinfer_cutedsl per-token NVFP4 activation requires moe_a2a_backend='none' or 'flashinfer'."
        r.refuse(
            "kernel.per_token", "ValueError", message, "are activations quantised per token?", "quantization, variable", r.quantization
        )
