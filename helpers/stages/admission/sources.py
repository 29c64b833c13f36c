"""Where each rule lives in SGLang. Files were split twice: 0.5.15 (arg_groups/overrides.py) and 0.5.19 (one hook file a topic)."""

from functools import cache

from helpers.deployment import Release

_KERNEL = (("0.5.11", "server_args.py: _handle_moe_kernel_config"), ("0.5.19", "arg_groups/moe_hook.py: handle_moe_kernel_config"))
_A2A = (("0.5.11", "server_args.py: _handle_a2a_moe"), ("0.5.19", "arg_groups/moe_hook.py: handle_a2a_moe"))

# The rules of an architecture: (function, its file from 0.5.19 on).
_FAMILIES = {
    "qwen3": ("_qwen3_moe_family_overrides", "qwen3_moe.py"),
    "glm4": ("_glm4_moe_overrides", "glm4_moe.py"),
    "deepseek_v4": ("_deepseek_v4_overrides", "deepseek_v4.py"),
    "gemma4": ("_gemma4_overrides", "gemma4.py"),
    "llama4": ("_llama4_overrides", "llama4.py"),
    "nemotron_h": ("_nemotron_h_overrides", "nemotron_h.py"),
    "minimax_m2": ("_minimax_m2_overrides", "minimax_m2.py"),
    "minimax_m3": ("_minimax_m3_overrides", "minimax_m3.py"),
    "gpt_oss": ("_gpt_oss_overrides", "gpt_oss.py"),
    "mimo_v2": ("_mimo_v2_overrides", "mimo_v2.py"),
    "cohere2": ("_cohere2_moe_runner_overrides", "cohere2_moe.py"),
    "kimi_k3": ("_kimi_k3_moe_runner_overrides", "kimi_k3.py"),
    "beam": ("_beam_overrides", "beam.py"),
}

_SPECULATIVE = (("0.5.11", "server_args.py: _handle_speculative_decoding"),)

# rule -> (first release, "file: function"), oldest first.
SOURCES = {
    "defaults": (
        ("0.5.11", "server_args.py: _handle_missing_default_values"),
        ("0.5.19", "arg_groups/serving_hook.py: handle_missing_default_values"),
    ),
    "config": (("0.5.11", "utils/hf_transformers/config.py: get_config"), ("0.5.12", "utils/hf_transformers/config.py: parse")),
    "layer_types": (("0.5.11", "utils/hf_transformers_patches.py: patched"), ("0.5.14", "utils/hf_transformers/config.py: parse")),
    "model_config": (("0.5.11", "configs/model_config.py: _verify_quantization"),),
    "memory": (
        ("0.5.11", "server_args.py: _handle_gpu_memory_settings"),
        ("0.5.19", "arg_groups/memory_hook.py: handle_gpu_memory_settings"),
    ),
    "parallel": (
        ("0.5.11", "server_args.py: _handle_data_parallelism"),
        ("0.5.19", "arg_groups/parallel_hook.py: handle_data_parallelism"),
    ),
    "kernel": _KERNEL,
    "kernel_constraints": (*_KERNEL[:1], ("0.5.15", "arg_groups/overrides.py: _moe_runner_backend_quant_constraints")),
    "fusion": (*_KERNEL[:1], ("0.5.15", "arg_groups/overrides.py: _moe_runner_fusion_disable")),
    "cutlass_variable": (*_KERNEL[:1], ("0.5.15", "arg_groups/overrides.py: _cutlass_moe_env_override")),
    "a2a": _A2A,
    "a2a_backend": (*_A2A[:1], ("0.5.15", "arg_groups/overrides.py: _a2a_backend_overrides")),
    "a2a_ep": (*_A2A[:1], ("0.5.15", "arg_groups/overrides.py: _a2a_ep_size")),
    "a2a_fusion": (*_A2A[:1], ("0.5.15", "arg_groups/overrides.py: _a2a_fusion_adjustments")),
    "dispatch_type": (("0.5.20", "arg_groups/moe_hook.py: handle_flashinfer_a2a_dispatch_type"),),
    "megamoe_alias": (
        ("0.5.18", "server_args.py: _handle_moe_runner_backend_alias"),
        ("0.5.19", "arg_groups/mega_moe_hook.py: handle_moe_runner_backend_alias"),
    ),
    "megamoe_gpu": (("0.5.21", "arg_groups/mega_moe_hook.py: check_mega_moe_compat"),),
    "megamoe_model": (("0.5.20", "arg_groups/moe_hook.py: validate_flashinfer_megamoe_model"),),
    "megamoe_budget": (("0.5.21", "arg_groups/mega_moe_hook.py: validate_mega_moe_token_budget"),),
    "megamoe_v4_budget": (("0.5.17", "arg_groups/deepseek_v4_hook.py: validate_deepseek_v4_mega_moe_token_budget"),),
    "deepep_v2_architecture": (("0.5.19", "arg_groups/moe_hook.py: validate_deepep_v2_model_architecture"),),
    "deepep_v2_budget": (("0.5.19", "arg_groups/moe_hook.py: validate_deepep_v2_dispatch_token_budget"),),
    "deepep_v2_draft": (("0.5.19", "arg_groups/moe_hook.py: validate_deepep_v2_speculative_draft"),),
    "lora_runner": (("0.5.23", "arg_groups/lora_hook.py: check_lora_moe_runner_args"),),
    "cutedsl_budget": (
        ("0.5.13", "server_args.py: _validate_cutedsl_a2a_token_budget"),
        ("0.5.19", "arg_groups/moe_hook.py: validate_cutedsl_a2a_token_budget"),
    ),
    "flashinfer_budget": (("0.5.22", "arg_groups/moe_hook.py: validate_flashinfer_a2a_token_budget"),),
    "marlin_lora": (("0.5.16", "lora/marlin_lora_temp/policy.py: validate_experimental_sgl_marlin_server_args"),),
    "family": (
        ("0.5.11", "server_args.py: _handle_model_specific_adjustments"),
        ("0.5.19", "arg_groups/model_hook.py: handle_model_specific_adjustments"),
    ),
    "deepseek_v4_workstation": (
        ("0.5.13", "server_args.py: _handle_model_specific_adjustments"),
        ("0.5.15", "arg_groups/overrides.py: _deepseek_v4_sm120_moe"),
    ),
    "deepseek_v4_speculation": (("0.5.12", "arg_groups/deepseek_v4_hook.py: apply_deepseek_v4_defaults"),),
    "attention": (
        ("0.5.11", "server_args.py: _get_default_attn_backend"),
        ("0.5.19", "arg_groups/model_override_base.py: get_default_attn_backend"),
    ),
    "page_size": (("0.5.11", "server_args.py: check_server_args"), ("0.5.19", "arg_groups/validation_hook.py: check_server_args")),
    "radix_cache": (("0.5.11", "server_args.py: _handle_mamba_radix_cache"),),
    "speculative_eagle": (*_SPECULATIVE, ("0.5.13", "arg_groups/speculative_hook.py: _handle_eagle_family")),
    "speculative_standalone": (*_SPECULATIVE, ("0.5.13", "arg_groups/speculative_hook.py: _handle_eagle_family")),
    "speculative_ngram": (*_SPECULATIVE, ("0.5.13", "arg_groups/speculative_hook.py: _handle_ngram")),
    "deepseek": (
        ("0.5.11", "server_args.py: _handle_model_specific_adjustments"),
        ("0.5.15", "arg_groups/overrides.py: _deepseek_moe_quant_resolution"),
    ),
} | {
    rule: (
        ("0.5.11", "server_args.py: _handle_model_specific_adjustments"),
        ("0.5.15", f"arg_groups/overrides.py: {function}"),
        ("0.5.19", f"arg_groups/model_overrides/{file}: {function}"),
    )
    for rule, (function, file) in _FAMILIES.items()
}


@cache
def where(rule: str, release: Release) -> str:
    """ "file: function" of a rule in a release; what follows a dot in its name says which check of that function."""
    return [place for first, place in SOURCES[rule.partition(".")[0]] if release.at_least(first)][-1]


def source(rule: str, release: Release) -> str:
    """What a Step or Finding cites: ``sglang 0.5.15 server_args.py: _handle_moe_kernel_config``."""
    return f"sglang {release} {where(rule, release)}"
