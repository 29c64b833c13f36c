"""What an architecture decides for itself: the quantization it writes into the arguments, and its default MoE runner.

A checkpoint's quantization is known to ModelConfig, but the allowlists read ``server_args.quantization``, which stays empty unless
the user or one of these rules fills it. That is why the same checkpoint is refused on one GPU and accepted on another.
"""

from collections.abc import Callable, Mapping

from helpers.stages.admission.budget import early_budget_rules
from helpers.stages.admission.resolution import Resolution
from helpers.stages.admission.speculative import deepseek_v4_speculation

_MODELOPT = ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed")


def _fill_quantization(r: Resolution, rule: str) -> None:
    """``get_quantization_config(hf_config)`` where the user gave no flag: None when only hf_quant_config.json says it."""
    question = "does this architecture fill in the quantization?"
    if r.quantization is None and not r.quantization_unset_on_purpose and r.facts.quant_method is not None:
        r.decide(rule, "quantization", r.facts.quant_method, question, "config.json: quant_method", r.facts.quant_method)
    else:
        r.note(rule, question, "--quantization, config.json: quant_method", f"{r.quantization}, {r.facts.quant_method}", "no")


def _default_runner(r: Resolution, rule: str, runner: str, read: str, seen: object) -> None:
    r.decide(rule, "runner", runner, "which MoE runner does auto mean here?", read, seen)


def qwen3(r: Resolution) -> None:
    """Qwen3 MoE, VL, Next and 3.5. Only on data-centre Blackwell. Mixed counts from 0.5.20; W4A16 experts have rules from then."""
    rule = "qwen3"
    if not r.gpu.is_sm100:
        return r.note(rule, "does this architecture fill in the quantization?", "GPU", r.gpu, "no: only on sm_100 and sm_103")
    _fill_quantization(r, rule)
    fits = ("fp8", "modelopt_fp4", None)
    if r.release.at_least("0.5.20"):
        if r.quantization == "modelopt_mixed" and r.facts.has_w4a16_experts:
            return _qwen3_w4a16(r, rule)
        fits = (*fits, "modelopt_mixed")
    if r.runner == "auto" and r.a2a == "none" and r.quantization in fits:
        _default_runner(r, rule, "flashinfer_trtllm", "quantization, a2a", f"{r.quantization}, none")
    return None


def _qwen3_w4a16(r: Resolution, rule: str) -> None:
    """W4A16_NVFP4 experts: trtllm-gen has no kernel for BF16 activations, CuTe DSL does when asked to."""
    opted_in = r.runner == "flashinfer_cutedsl" and r.a2a in ("none", "flashinfer") and r.switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
    question, read = "can this runner take W4A16_NVFP4 experts?", "runner, a2a, SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16"
    if r.runner not in ("auto", "marlin") and not opted_in:
        message = (
            "W4A16_NVFP4 MoE layers require --moe-runner-backend=marlin, or flashinfer_cutedsl with "
            "--moe-a2a-backend=none/flashinfer and SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1."
        )
        r.refuse("qwen3.w4a16", "ValueError", message, question, read, r.runner)
    if r.runner == "auto":
        _default_runner(r, rule, "marlin", "quantized_layers", "W4A16_NVFP4 experts")


def glm4(r: Resolution) -> None:
    """GLM-4 MoE: like Qwen3, and mixed has never been in its list."""
    if r.gpu.is_sm100:
        _fill_quantization(r, "glm4")
        fits = ("modelopt_fp4", None) if r.release.at_least("0.5.15") else ("modelopt_fp4",)
        if r.runner == "auto" and r.a2a == "none" and r.quantization in fits:
            _default_runner(r, "glm4", "flashinfer_trtllm", "quantization, a2a", f"{r.quantization}, none")


def deepseek(r: Resolution) -> None:
    """DeepSeek V3 and V3.2, Kimi K2.5, GLM-5, Mistral Large 3 and relatives. Only on data-centre Blackwell; mixed counts everywhere.

    LongCat's routing spans experts that do nothing, which TRT-LLM's kernel cannot see: no default for it from 0.5.17. 0.5.11 reads
    V3.2's configuration as V3's.
    """
    rule = "deepseek"
    looked_at = ("DeepseekV3ForCausalLM",) if r.release.at_least("0.5.12") else ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")
    if not r.gpu.is_sm100:
        return r.note(rule, "does this architecture fill in the quantization?", "GPU", r.gpu, "no: only on sm_100 and sm_103")
    if r.facts.architecture in looked_at and r.quantization is None and r.facts.quant_method is None:
        if not r.quantization_unset_on_purpose:
            question = "no quant_method: are the expert weights FP8?"
            if r.facts.has_fp8_experts:
                r.decide(rule, "quantization", "fp8", question, "dtype of the first expert weight", "F8_E4M3")
            else:
                r.note(rule, question, "dtype of the first expert weight", "no F8_E4M3 weight", "no: quantization stays None")
    else:
        _fill_quantization(r, rule)
    fits: tuple[str | None, ...] = ("fp8", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed")
    if r.release.at_least("0.5.12"):
        fits = (*fits, None)
    longcat = r.facts.architecture.startswith("LongcatFlash") and r.release.at_least("0.5.17")
    if r.runner == "auto" and r.a2a == "none" and not longcat and (r.quantization in fits or _is_kimi_int4(r)):
        _default_runner(r, rule, "flashinfer_trtllm", "quantization, a2a", f"{r.quantization}, none")
    return None


def _is_kimi_int4(r: Resolution) -> bool:
    """Kimi K2 and K2.5 Thinking: compressed-tensors, 4-bit integers in groups of 32."""
    declared = r.facts.declared or {}
    weights = declared.get("config_groups", {}).get("group_0", {}).get("weights", {})
    want = {"num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"}
    return r.facts.quant_method == "compressed-tensors" and all(weights.get(key) == value for key, value in want.items())


def deepseek_v4(r: Resolution) -> None:
    """DeepSeek V4: the hybrid FP8 + NVFP4 checkpoints take the routed TRT-LLM runner.

    Workstation Blackwell (SM 12.0) takes marlin from 0.5.13 and flashinfer_mxfp4 from 0.5.16. From 0.5.19 MXFP4 experts take
    flashinfer_mxfp4 on every GPU from Hopper on, without an all-to-all.
    """
    rule = "deepseek_v4"
    r.max_running_requests = 256
    deepseek_v4_speculation(r)
    if r.runner == "auto" and r.facts.hybrid_nvfp4:
        _default_runner(r, rule, "flashinfer_trtllm_routed", "nvfp4_moe_meta", "set")
    later = r.release.at_least("0.5.19")
    if later and r.runner == "auto" and r.a2a == "none" and r.gpu.capability >= (9, 0) and r.facts.has_fp4_experts:
        _default_runner(r, rule, "flashinfer_mxfp4", "ModelConfig.is_fp4_experts", True)
    early_budget_rules(r)
    if r.runner == "auto" and r.gpu.is_sm120 and r.release.at_least("0.5.13") and not later:
        runner = "flashinfer_mxfp4" if r.release.at_least("0.5.16") else "marlin"
        _default_runner(r, "deepseek_v4_workstation", runner, "GPU", r.gpu)


def gemma4(r: Resolution) -> None:
    """Gemma 4: only with runner auto, and only for flat NVFP4."""
    if r.gpu.is_sm100 and r.runner == "auto" and r.model_quantization == "modelopt_fp4":
        r.decide(
            "gemma4", "quantization", "modelopt_fp4", "does this architecture fill in the quantization?", "ModelConfig", "modelopt_fp4"
        )
        _default_runner(r, "gemma4", "flashinfer_trtllm", "ModelConfig.quantization", "modelopt_fp4")


def llama4(r: Resolution) -> None:
    """Llama 4: FP8 only, and only by the flag, because nothing fills in its quantization."""
    if r.gpu.is_sm100 and r.runner == "auto" and r.quantization in ("fp8", "modelopt_fp8"):
        _default_runner(r, "llama4", "flashinfer_trtllm", "--quantization", r.quantization)


def nemotron_h(r: Resolution) -> None:
    """Nemotron-H: takes ModelConfig's answer on every GPU, and resolves ``auto``: to marlin before Blackwell from 0.5.13.

    W4A16 experts have rules from 0.5.18.
    """
    rule = "nemotron_h"
    is_modelopt = r.model_quantization in _MODELOPT
    if is_modelopt:
        question = "does this architecture fill in the quantization?"
        if r.facts.checkpoint.config.get("mlp_hidden_act") != "relu2":
            r.refuse(
                "nemotron_h.activation",
                "AssertionError",
                "",
                question,
                "config.json: mlp_hidden_act",
                r.facts.checkpoint.config.get("mlp_hidden_act"),
            )
        named = _nemotron_name(r, question)
        r.decide(rule, "quantization", named, question, "ModelConfig.quantization", r.model_quantization)
    if r.release.at_least("0.5.18") and r.quantization == "modelopt_mixed" and is_modelopt and _nemotron_w4a16(r, rule):
        return
    newer = r.release.at_least("0.5.13")
    if r.runner != "auto" or not (is_modelopt or (newer and r.model_quantization is None)):
        return
    if r.gpu.is_sm100 and r.a2a == "none":
        _default_runner(r, rule, "flashinfer_trtllm", "GPU, a2a", f"{r.gpu}, none")
    elif (
        newer
        and (8, 0) <= r.gpu.capability < (10, 0)
        and (r.model_quantization in ("modelopt_fp4", "modelopt_mixed") or r.quantization == "modelopt_fp4")
    ):
        _default_runner(r, rule, "marlin", "GPU, ModelConfig.quantization", f"{r.gpu}, {r.model_quantization}")
    else:
        _default_runner(r, rule, "flashinfer_cutlass", "GPU, a2a", f"{r.gpu}, {r.a2a}")


_NO_INLINE = "'NemotronHConfig' object has no attribute 'quantization_config'"


def _nemotron_name(r: Resolution, question: str) -> str:
    """ModelConfig's name, and where that is only "modelopt" the algorithm as config.json spells it decides; anything unknown is FP8."""
    if r.model_quantization != "modelopt":
        return r.model_quantization
    if r.facts.declared is None:
        r.refuse("nemotron_h.no_inline_map", "AttributeError", _NO_INLINE, question, "config.json: quant_algo", "absent")
    return {"MIXED_PRECISION": "modelopt_mixed", "NVFP4": "modelopt_fp4"}.get(r.facts.declared.get("quant_algo"), "modelopt_fp8")


def _nemotron_w4a16(r: Resolution, rule: str) -> bool:
    """The W4A16 guard of 0.5.18. It reads hf_config.quantization_config, which a checkpoint with only the other file lacks."""
    question, read = "are its experts W4A16_NVFP4?", "config.json: quantized_layers"
    if r.facts.declared is None:
        r.refuse("nemotron_h.no_inline_map", "AttributeError", _NO_INLINE, question, read, "absent: only hf_quant_config.json has the map")
    if not r.facts.has_w4a16_experts_nemotron:
        r.note(rule, question, read, f"{len(r.facts.layers)} entries", "no")
        return False
    if r.a2a != "none":
        r.refuse("nemotron_h.w4a16_a2a", "ValueError", "W4A16_NVFP4 MoE layers require --moe-a2a-backend=none.", question, "a2a", r.a2a)
    if r.runner not in ("auto", "marlin"):
        r.refuse(
            "nemotron_h.w4a16_runner",
            "ValueError",
            "W4A16_NVFP4 MoE layers require --moe-runner-backend=marlin.",
            question,
            "runner",
            r.runner,
        )
    if r.runner == "auto":
        _default_runner(r, rule, "marlin", read, "W4A16_NVFP4 experts")
    return True


def minimax_m2(r: Resolution) -> None:
    """MiniMax M2: the routed TRT-LLM runner from 0.5.18. Nothing fills in the quantization."""
    if r.gpu.is_sm100 and r.runner == "auto" and r.model_quantization == "modelopt_fp4":
        _default_runner(r, "minimax_m2", "flashinfer_trtllm_routed", "ModelConfig.quantization", "modelopt_fp4")


def minimax_m3(r: Resolution) -> None:
    """MiniMax M3, from 0.5.16: the quantization is filled in on every GPU; the routed runner for mixed from 0.5.17, on Blackwell."""
    rule = "minimax_m3"
    _fill_quantization(r, rule)
    if r.gpu.is_sm100 and r.runner == "auto":
        if r.quantization == "mxfp8":
            _default_runner(r, rule, "deep_gemm", "quantization", "mxfp8")
        elif r.quantization == "modelopt_mixed" and r.release.at_least("0.5.17"):
            _default_runner(r, rule, "flashinfer_trtllm_routed", "quantization", "modelopt_mixed")
    if r.quantization is None and r.runner in ("auto", "deep_gemm"):
        _default_runner(r, rule, "triton", "quantization", "None")


def gpt_oss(r: Resolution) -> None:
    """gpt-oss: MXFP4 has runners of its own; triton_kernel does not run with expert parallelism."""
    rule = "gpt_oss"
    is_mxfp4 = r.facts.quant_method == "mxfp4"
    if r.runner == "auto" and is_mxfp4:
        if r.gpu.is_sm100:
            _default_runner(r, rule, "flashinfer_mxfp4", "quant_method", "mxfp4")
        elif r.gpu.is_sm120:
            newer = "flashinfer_mxfp4" if r.release.at_least("0.5.17") else "marlin"
            _default_runner(r, rule, newer if r.release.at_least("0.5.14") else "triton_kernel", "quant_method", "mxfp4")
    if r.runner == "triton_kernel":
        question = "is ep 1, as triton_kernel needs?"
        r.check("family.triton_kernel_ep", r.ep == 1, "Triton kernel MoE is only supported when ep_size == 1", question, "--ep-size", r.ep)


def cohere2(r: Resolution) -> None:
    """Command A Plus, from 0.5.19: unquantised, or compressed-tensors NVFP4."""
    declared = r.facts.declared or {}
    packed = "nvfp4" in str(declared.get("format", "")) or _has_format(declared, "nvfp4")
    if r.runner == "auto" and r.gpu.is_sm100 and (r.model_quantization is None or packed):
        _default_runner(r, "cohere2", "flashinfer_trtllm", "config_groups: format", "nvfp4-pack-quantized" if packed else "not quantised")


def kimi_k3(r: Resolution) -> None:
    """Kimi K3, from 0.5.17: packed MXFP4. NVIDIA's NVFP4 checkpoint of it has no rule.

    0.5.17 alone refuses when the kernels, which the user installs, are missing; SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL is taken at its word.
    """
    text = r.facts.text_quantization
    asked = r.runner in ("auto", "flashinfer_mxfp4")
    if not (asked and r.gpu.is_sm100 and isinstance(text, Mapping) and _has_format(text, "mxfp4")):
        return
    if not r.release.at_least("0.5.18") and not r.is_set("SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL"):
        question = "are its TRT-LLM kernels installed?"
        r.refuse("kimi_k3.kernels", "RuntimeError", _KIMI_K3_KERNELS, question, "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL", "not set")
    if r.runner == "auto":
        _default_runner(r, "kimi_k3", "flashinfer_mxfp4", "config_groups: format", "mxfp4")


_KIMI_K3_POOL = "trtllm_gen_moe_cubin_pool_20260617_v0613rc1"
_KIMI_K3_KERNELS = (
    "Kimi-K3 on Blackwell with moe_runner_backend='auto' or 'flashinfer_mxfp4' requires a valid SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL. "
    "Install it with:\n"
    f"wget https://github.com/sgl-project/whl/releases/download/trtllm_gen_moe_cubin_20260617/{_KIMI_K3_POOL}.zip\n"
    "sudo mkdir -p /opt/trtllm_gen_moe_cubin_pool\n"
    f"sudo unzip -q {_KIMI_K3_POOL}.zip -d /opt/trtllm_gen_moe_cubin_pool\n"
    f"export SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL=/opt/trtllm_gen_moe_cubin_pool/{_KIMI_K3_POOL}\n"
    "To use Marlin instead, set --moe-runner-backend marlin explicitly."
)


def _has_format(quantization: Mapping, name: str) -> bool:
    groups = quantization.get("config_groups") or {}
    return any(isinstance(group, Mapping) and name in str(group.get("format", "")) for group in groups.values())


def mimo_v2(r: Resolution) -> None:
    """MiMo V2, from 0.5.17: checkpoints that call themselves fp8."""
    free = r.a2a == "none" or not r.release.at_least("0.5.22")
    if r.runner == "auto" and r.gpu.is_sm100 and r.facts.quant_method == "fp8" and free:
        _default_runner(r, "mimo_v2", "flashinfer_trtllm", "quant_method", "fp8")


def beam(r: Resolution) -> None:
    """Beam, from 0.5.23: flat NVFP4. Its rule reads quant_algo where quant_method only says modelopt; nothing is filled in."""
    quantization = r.quantization or r.facts.quant_method
    if quantization == "modelopt":
        quantization = (r.facts.declared or {}).get("quant_algo")
    if quantization in ("modelopt_fp4", "NVFP4") and r.gpu.is_sm100 and r.runner == "auto" and r.a2a == "none":
        _default_runner(r, "beam", "flashinfer_trtllm", "quantization, a2a", f"{quantization}, none")


Rule = Callable[[Resolution], None]
# architecture -> (its rule, the first release that applies it to this architecture)
FAMILIES: dict[str, tuple[Rule, str]] = {
    "DeepseekV3ForCausalLM": (deepseek, "0.5.11"),
    "DeepseekV32ForCausalLM": (deepseek, "0.5.11"),
    "KimiK25ForConditionalGeneration": (deepseek, "0.5.11"),
    "MistralLarge3ForCausalLM": (deepseek, "0.5.11"),
    "PixtralForConditionalGeneration": (deepseek, "0.5.11"),
    "GlmMoeDsaForCausalLM": (deepseek, "0.5.11"),
    "LongcatFlashForCausalLM": (deepseek, "0.5.16"),
    "Dots3NoteForCausalLM": (deepseek, "0.5.19"),
    "Glm5NextForConditionalGeneration": (deepseek, "0.5.20"),
    "DeepseekV4ForCausalLM": (deepseek_v4, "0.5.12"),
    "Qwen3MoeForCausalLM": (qwen3, "0.5.11"),
    "Qwen3VLMoeForConditionalGeneration": (qwen3, "0.5.11"),
    "Qwen3NextForCausalLM": (qwen3, "0.5.11"),
    "Qwen3_5MoeForConditionalGeneration": (qwen3, "0.5.11"),
    "Qwen3_5ForConditionalGeneration": (qwen3, "0.5.11"),
    "InternS2PreviewForConditionalGeneration": (qwen3, "0.5.12"),
    "Qwen4ExpForConditionalGeneration": (qwen3, "0.5.20"),
    "Glm4MoeForCausalLM": (glm4, "0.5.11"),
    "Gemma4ForConditionalGeneration": (gemma4, "0.5.13"),
    "Gemma4ForCausalLM": (gemma4, "0.5.13"),
    "Gemma4UnifiedForConditionalGeneration": (gemma4, "0.5.13"),
    "Llama4ForConditionalGeneration": (llama4, "0.5.11"),
    "Llama4ForCausalLM": (llama4, "0.5.11"),
    "NemotronHForCausalLM": (nemotron_h, "0.5.11"),
    "NemotronHPuzzleForCausalLM": (nemotron_h, "0.5.13"),
    "NemotronH_Omni_Reasoning_V3": (nemotron_h, "0.5.20"),
    "MiniMaxM2ForCausalLM": (minimax_m2, "0.5.18"),
    "MiniMaxM3SparseForCausalLM": (minimax_m3, "0.5.16"),
    "MiniMaxM3SparseForConditionalGeneration": (minimax_m3, "0.5.16"),
    "GptOssForCausalLM": (gpt_oss, "0.5.11"),
    "MiMoV2ForCausalLM": (mimo_v2, "0.5.17"),
    "MiMoV2FlashForCausalLM": (mimo_v2, "0.5.17"),
    "KimiK3ForConditionalGeneration": (kimi_k3, "0.5.17"),
    "Cohere2VisionForConditionalGeneration": (cohere2, "0.5.19"),
    "Cohere2MoeForCausalLM": (cohere2, "0.5.19"),
    "BeamForCausalLM": (beam, "0.5.23"),
}


def architecture_rules(r: Resolution) -> None:
    """The rule of the checkpoint's architecture, if it has one. server_args.py: _handle_model_specific_adjustments."""
    rule, first = FAMILIES.get(r.facts.architecture, (None, ""))
    if rule is None or not r.release.at_least(first):
        question = "does this architecture have rules of its own?"
        return r.note("family", question, "config.json: architectures", r.facts.architecture, "no: quantization and runner stay as given")
    return rule(r)
