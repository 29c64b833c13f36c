"""What to change about each refusal: a flag, a variable or a release to paste. And why the rule is there.

One entry for each name that a rule passes to ``Resolution.refuse`` or ``check``; a test holds the two equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from helpers.deployment import RELEASES, Release, releases_with
from helpers.findings import Finding
from helpers.stages.admission.allowlists import ALLOWLISTS, allowlist
from helpers.stages.admission.resolution import Refused, Resolution
from helpers.stages.admission.sources import source

_PR_30443 = "https://github.com/sgl-project/sglang/pull/30443"


@dataclass(frozen=True)
class Advice:
    """expected: what the rule wants. why: why it is there. remedy: text, or what makes it from the resolution."""

    expected: str
    why: str
    remedy: str | Callable[[Resolution], str]
    reference: str = ""


def whole_pages(r: Resolution, page: int) -> str:
    """The flag with the nearest chunk whose share for one attention group is whole pages of this many tokens."""
    return f"--chunked-prefill-size {max(1, round(r.chunked_prefill_size / page)) * page * r.attention_dp}"


def finding(r: Resolution, refused: Refused) -> Finding:
    """The refusal as a finding."""
    advice = ADVICE[refused.rule]
    remedy = advice.remedy if isinstance(advice.remedy, str) else advice.remedy(r)
    releases = (r.release.version,)
    reference = advice.reference
    if refused.rule == "kernel.quantization":
        releases = refusing_releases(r.runner, r.quantization, r.facts.hybrid_nvfp4)
        reference = _PR_30443 if r.runner == "flashinfer_cutedsl" and r.quantization == "modelopt_mixed" else ""
    return Finding(
        id=f"admit.{refused.rule}",
        stage="admit",
        severity="refused",
        read=refused.read,
        observed=f"{refused.value}: {refused.error}: {refused.message}",
        expected=advice.expected,
        why=advice.why,
        source=source(refused.rule, r.release),
        remedy=remedy,
        reference=reference,
        releases=releases,
    )


def _accepts(runner: str, quantization: str | None, hybrid: bool, release: Release) -> bool:
    entry = allowlist(runner, release)
    return entry is None or quantization in entry.accepts or (entry.hybrid and hybrid)


@cache
def refusing_releases(runner: str, quantization: str | None, hybrid: bool) -> tuple[str, ...]:
    """The releases whose list for this runner lacks this quantization."""
    return tuple(release.version for release in RELEASES if not _accepts(runner, quantization, hybrid, release))


@cache
def _allowlist_remedy(runner: str, quantization: str | None, model: str | None, hybrid: bool, release: Release) -> str:
    """The cheapest change first: say what the checkpoint is, then a newer release, then another runner, then the bypass."""
    remedies = []
    if quantization is None and model is not None and _accepts(runner, model, hybrid, release):
        remedies.append(f"--quantization {model}")
    newer = next((later for later in RELEASES[release.position + 1 :] if _accepts(runner, quantization, hybrid, later)), None)
    if newer is not None:
        remedies.append(f"upgrade to SGLang {newer} or newer")
    # A runner without a list takes any name here, and may fail later: only runners that name this quantization are proposed.
    others = [name for name in ALLOWLISTS if name != runner and quantization is not None and _accepts(name, quantization, hybrid, release)]
    if others:
        remedies.append(f"--moe-runner-backend {others[0]}")
    if quantization == "modelopt_mixed" and _accepts(runner, "modelopt_fp4", hybrid, release):
        remedies.append(
            "or pass the list with --quantization modelopt_fp4: it reads this text, while ModelConfig still takes modelopt_mixed from the "
            "checkpoint (a bypass, not a fix)"
        )
    if not remedies and quantization is not None:
        remedies.append("leave out --quantization" if quantization != model else "--moe-runner-backend triton")
    return "; ".join(remedies) or "--moe-runner-backend triton"


def _allowlist(r: Resolution) -> str:
    return _allowlist_remedy(r.runner, r.quantization, r.model_quantization, r.facts.hybrid_nvfp4, r.release)


def _flag(r: Resolution) -> str:
    name = r.facts.detection.quantization
    return f"leave out --quantization: this checkpoint is {name}" if name else "leave out --quantization"


def _model_type(r: Resolution) -> str:
    known = releases_with(r.facts.checkpoint.config.get("model_type"))
    newer = [release for release in known if release.position > r.release.position]
    if newer:
        return f"upgrade to SGLang {newer[0]} or newer"
    return f"use SGLang {known[-1]}" if known else "no release up to " + f"{RELEASES[-1]} knows this model"


def _attention_dp(r: Resolution) -> str:
    if r.tp == 1:
        return "--tp-size 8 with attention data parallel over all 8, or --moe-a2a-backend none"
    if r.release.at_least("0.5.22"):
        return f"--attn-dp-size {r.tp}, or --moe-a2a-backend none"
    return f"--dp-size {r.tp} --enable-dp-attention, or --moe-a2a-backend none"


def _one_or_tp(r: Resolution) -> str:
    return f"--ep-size {r.tp}, or --ep-size 1"


def _divisor(r: Resolution) -> str:
    below = next(size for size in range(min(r.attention_dp, r.tp), 0, -1) if r.tp % size == 0)
    return f"{'--attn-dp-size' if r.release.at_least('0.5.22') else '--dp-size'} {below}, which divides tp {r.tp}"


_BUFFER = "an all-to-all sends tokens through a buffer of fixed size; a larger forward would overrun it"
_NO_KERNEL = "the runner has no function for what this all-to-all delivers"
_W4A16 = "the experts are W4A16_NVFP4: their activations stay BF16, and most kernels take FP4 activations only"
_BY_NAME = "the list compares server_args.quantization, the flag or what a rule of the architecture wrote, not the layers' formats"

ADVICE: dict[str, Advice] = {
    "config.model_type": Advice("a model type with a config class", "nothing of a checkpoint is executed to find one", _model_type),
    "layer_types": Advice(
        "kinds of layers that transformers knows",
        "the release pins a transformers older than this kind of layer",
        lambda r: f"upgrade to SGLang {next(x for x in RELEASES if x.transformers not in ('5.6.0', '5.8.1'))} or newer",
    ),
    "model_config": Advice("a flag that agrees with the checkpoint", "ModelConfig raises when the two cannot be reconciled", _flag),
    "parallel.dp": Advice("a dp size that divides the tp size", "attention groups split the tp group into equal parts", _divisor),
    "kernel.quantization": Advice("a name in the runner's list", _BY_NAME, _allowlist),
    "kernel.ep": Advice("ep 1, or ep equal to tp", "the runner's weights are split over all of tp or not at all", _one_or_tp),
    "kernel.fp8_ep": Advice("ep 1", "the CUTLASS FP8 kernels have no expert parallelism", "--ep-size 1, or --moe-runner-backend triton"),
    "kernel.a2a": Advice("an all-to-all that flashinfer_cutedsl has a function for", _NO_KERNEL, "--moe-a2a-backend none"),
    "kernel.per_token": Advice(
        "no DeepEP with activations quantised per token",
        "DeepEP's masked layout carries one scale for all tokens",
        "--moe-a2a-backend none, or unset SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION",
    ),
    "kernel_constraints.online_gpu": Advice(
        "an sm_100 or sm_103 GPU", "nvfp4_online quantises while it loads, for TRT-LLM's kernels", "leave out --quantization nvfp4_online"
    ),
    "kernel_constraints.online_runner": Advice(
        "a runner that takes nvfp4_online", "only these runners prepare weights quantised while they load", "--moe-runner-backend auto"
    ),
    "cutlass_variable": Advice("fp8 or mxfp8", "SGLANG_CUTLASS_MOE forces the CUTLASS runner, FP8 only", "unset SGLANG_CUTLASS_MOE"),
    "qwen3.w4a16": Advice(
        "runner auto or marlin, or flashinfer_cutedsl with its W4A16 mode",
        _W4A16,
        "--moe-runner-backend marlin, or SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1 with --moe-runner-backend flashinfer_cutedsl",
    ),
    "nemotron_h.activation": Advice(
        "relu2", "the ModelOpt kernels for Nemotron-H know relu2 only", "restore mlp_hidden_act in config.json"
    ),
    "nemotron_h.no_inline_map": Advice(
        "quantization_config in config.json",
        "the W4A16 guard of 0.5.18 reads hf_config.quantization_config without asking whether it exists",
        "copy the quantization section of hf_quant_config.json into config.json as quantization_config, or use SGLang 0.5.17",
    ),
    "nemotron_h.w4a16_a2a": Advice("no all-to-all", _W4A16, "--moe-a2a-backend none"),
    "nemotron_h.w4a16_runner": Advice("runner auto or marlin", _W4A16, "--moe-runner-backend marlin"),
    "family.triton_kernel_ep": Advice("ep 1", "the triton_kernel runner has no expert parallelism", "--ep-size 1"),
    "a2a.dispatch_flag": Advice(
        "--moe-a2a-backend flashinfer", "only that all-to-all has a dispatch type", "leave out --flashinfer-a2a-dispatch-type"
    ),
    "a2a.deepep_mode": Advice(
        "auto or low_latency",
        "flashinfer_cutedsl has no kernel for the layout of DeepEP's normal dispatch",
        "--deepep-mode low_latency",
        "https://github.com/sgl-project/sglang/issues/29523",
    ),
    "a2a.deepep_v2_runner": Advice("deep_gemm", _NO_KERNEL, "--moe-runner-backend deep_gemm, or --moe-a2a-backend deepep"),
    "a2a.attention_dp": Advice(
        "attention data parallel over all of tp",
        "each rank sends its own tokens: without data parallel attention all ranks hold the same ones",
        _attention_dp,
    ),
    "a2a.w4a16_dispatch": Advice(
        "tokens sent as BF16",
        _W4A16,
        "unset SGLANG_MOE_NVFP4_DISPATCH and use --flashinfer-a2a-dispatch-type bf16",
    ),
    "a2a.flashinfer_runner": Advice(
        "a runner with a function for FlashInfer's all-to-all", _NO_KERNEL, "--moe-runner-backend flashinfer_cutlass"
    ),
    "a2a.megamoe_runner": Advice("flashinfer_megamoe", "this all-to-all and its kernel are one", "--moe-runner-backend flashinfer_megamoe"),
    "a2a.megamoe_gpu": Advice("an sm_100 GPU", "the kernel is written for sm_100", "--moe-a2a-backend none"),
    "a2a.mori_tokens": Advice(
        "a chunk that fits MoRI's buffer",
        _BUFFER,
        lambda r: f"SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK={r.chunked_prefill_size}, or --chunked-prefill-size 4096",
    ),
    "a2a.pplx_mode": Advice("auto or low_latency", "pplx has one mode", "--deepep-mode low_latency"),
    "a2a.pplx_dp": Advice("at least two attention groups", "with one group pplx cannot be built", _attention_dp),
    "a2a.pplx_runner": Advice("deep_gemm or auto", _NO_KERNEL, "--moe-runner-backend auto, or --moe-a2a-backend none"),
    "a2a.pplx_tokens": Advice(
        "a chunk that fits pplx's buffer",
        _BUFFER,
        lambda r: f"SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK={r.chunked_prefill_size}, or a smaller --chunked-prefill-size",
    ),
    "dispatch_type.variable": Advice(
        "the flag or the variable, not both", "they say the same thing twice", "unset SGLANG_MOE_NVFP4_DISPATCH"
    ),
    "dispatch_type.quantization": Advice("a dispatch type of the checkpoint's own format", _BY_NAME, "--flashinfer-a2a-dispatch-type bf16"),
    "dispatch_type.runner": Advice("flashinfer_trtllm_routed", _NO_KERNEL, "--moe-runner-backend flashinfer_trtllm_routed"),
    "deepep_v2_architecture": Advice(
        "an architecture in DeepEP v2's list", "its way of combining experts is checked model by model", "--moe-a2a-backend deepep"
    ),
    "deepep_v2_budget": Advice(
        "a forward that fits DeepEP v2's buffer", _BUFFER, "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK=<required, above>"
    ),
    "megamoe_gpu": Advice("an sm_90 or sm_100 GPU", "megamoe is a DeepGEMM kernel", "--moe-a2a-backend none"),
    "megamoe_model.architecture": Advice(
        "an architecture in FlashInfer MegaMoE's list", "models are added to it one by one", "--moe-a2a-backend flashinfer"
    ),
    "megamoe_model.quantization": Advice("modelopt_fp4, mxfp8 or a hybrid checkpoint", _BY_NAME, "--moe-a2a-backend flashinfer"),
    "megamoe_budget": Advice(
        "a forward that fits megamoe's buffer", _BUFFER, "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=<required, above>"
    ),
    "megamoe_v4_budget": Advice(
        "a forward that fits megamoe's buffer", _BUFFER, "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=<required, above>"
    ),
    "marlin_lora": Advice("no all-to-all", _NO_KERNEL, "--moe-a2a-backend none"),
    "lora_runner": Advice("a runner for a model without adapters", "these runners exist for LoRA adapters", "--moe-runner-backend auto"),
    "lora_runner.draft": Advice(
        "a runner for a model without adapters", "these runners exist for LoRA adapters", "--speculative-moe-runner-backend auto"
    ),
    "kimi_k3.kernels": Advice(
        "kernels that a wheel does not bring", "0.5.17 refuses to fall back by itself", "--moe-runner-backend marlin, or SGLang 0.5.18"
    ),
    "deepseek_v4_speculation.algorithm": Advice("EAGLE", "no other way to draft is written for it", "--speculative-algorithm EAGLE"),
    "deepseek_v4_speculation.paths": Advice("one path", "its draft layers follow one path only", "--speculative-eagle-topk 1"),
    "deepep_v2_draft": Advice(
        "another all-to-all for the draft model", "its reduction after the experts is not validated", "--speculative-moe-a2a-backend deepep"
    ),
    "page_size": Advice("whole pages", "a chunk ends where a page ends", lambda r: whole_pages(r, r.attention[1])),
    "radix_cache": Advice(
        "a scheduler that buffers the state",
        "the default one keeps no copy of the state that a rejected draft needs",
        "SGLANG_ENABLE_SPEC_V2=1 and --mamba-scheduler-strategy extra_buffer, or SGLang 0.5.14 or newer",
    ),
    "speculative_eagle.numbers": Advice(
        "all three numbers, or none", "a part of them says nothing about the rest", "--speculative-num-steps 3 --speculative-eagle-topk 1"
    ),
    "speculative_eagle.trtllm_mha": Advice("one path", "its kernels follow one path only", "--speculative-eagle-topk 1"),
    "speculative_eagle.page": Advice("one path, or pages of one token", "a branch ends inside a page", "--speculative-eagle-topk 1"),
    "speculative_ngram.page": Advice("pages of one token", "a branch ends inside a page", "--attention-backend flashinfer"),
    "speculative_standalone": Advice("no attention data parallelism", "not written yet", "leave out --enable-dp-attention"),
    "speculative_ngram": Advice("no attention data parallelism", "not written yet", "leave out --enable-dp-attention"),
    "cutedsl_budget": Advice(
        "a forward that fits FlashInfer's buffers",
        _BUFFER,
        "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK as the message says, or a smaller --max-prefill-tokens",
        "https://github.com/sgl-project/sglang/pull/26696",
    ),
    "flashinfer_budget": Advice(
        "a forward that fits FlashInfer's workspace",
        _BUFFER,
        "unset SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK, or a smaller --chunked-prefill-size",
    ),
}
