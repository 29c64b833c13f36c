"""What a routing does on one deployment: one table row for each rule and side of it."""

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.deployment import Deployment, deployment
from helpers.stages.admit import admit
from helpers.stages.case import Case
from helpers.stages.consequences import consequences
from helpers.stages.detect import detect
from helpers.stages.route import route

CUTEDSL, CUTLASS, TRTLLM, ROUTED = "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_trtllm_routed"


def parts(checkpoint, on: Deployment):
    checkpoint = open_checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
    detection = detect(checkpoint, on.release)
    admission = admit(checkpoint, detection, on)
    return checkpoint, detection, admission, route(checkpoint, detection, on.release, admission.model_quantization), on


def found(checkpoint, **values) -> dict[str, tuple[str, str]]:
    checkpoint, detection, admission, routing, on = parts(checkpoint, deployment(**values))
    assert admission.accepted, admission.message
    return {f.id: (f.severity, f.observed) for f in consequences(checkpoint, detection, admission, routing, on)}


@pytest.mark.parametrize(
    ("checkpoint", "values", "rule", "severity", "text"),
    [
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": "cutlass"},
            "cutlass_refused_for_nvfp4",
            "fails_to_load",
            "is not supported for NVFP4",
        ),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.14", "runner": "cutlass"},
            "cutlass_refused_for_nvfp4",
            "fails_to_load",
            "MoeRunnerBackend.CUTLASS",
        ),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.15", "runner": "cutlass"}, "cutlass_refused_for_nvfp4", None, ""),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": TRTLLM, "gpu": "H100"},
            "nvfp4_needs_blackwell",
            "fails_to_load",
            "marlin on SM80+",
        ),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.12", "gpu": "H100"}, "nvfp4_needs_blackwell", "fails_to_load", "and above."),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "gpu": "H100"}, "nvfp4_needs_blackwell", None, ""),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "runner": "marlin", "gpu": "H100"}, "nvfp4_needs_blackwell", None, ""),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": TRTLLM, "a2a": "deepep", "tp": 2},
            "no_fused_function",
            "fails_to_load",
            "Runner backend MoeRunnerBackend.FLASHINFER_TRTLLM requires a fused func for a2a backend deepep, but none is registered.",
        ),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "runner": CUTEDSL, "a2a": "deepep", "tp": 2}, "no_fused_function", None, ""),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.15", "runner": ROUTED, "a2a": "flashinfer", "tp": 2, "dp": 2, "enable_dp_attention": True},
            "no_fused_function",
            None,
            "",
        ),
        ("qwen3.5-moe-mixed", {"sglang": "0.5.15"}, "auto_unresolved", "off_path", "cutlass_moe_fp4"),
        (
            "qwen3.5-moe-mixed",
            {"sglang": "0.5.16"},
            "auto_unresolved",
            "fails_at_first_forward",
            "NotImplementedError",
        ),
        ("qwen3.5-moe-mixed", {"sglang": "0.5.20"}, "auto_unresolved", None, ""),
        ("qwen3-moe-mixed", {"sglang": "0.5.23", "gpu": "RTX-PRO-6000"}, "auto_unresolved", "fails_at_first_forward", "g1_scale_c"),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.15", "runner": "triton"}, "runner_without_nvfp4_kernel", "off_path", "cutlass_moe_fp4"),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "runner": "triton"}, "runner_without_nvfp4_kernel", "fails_at_first_forward", "TRITON"),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": CUTEDSL, "gpu": "RTX-PRO-6000", "quantization": "modelopt_fp4"},
            "kernel_for_another_gpu",
            "fails_at_first_forward",
            "sm_120",
        ),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "runner": TRTLLM, "gpu": "RTX-PRO-6000"}, "kernel_gpu_unknown", "abstained", "sm_120"),
        ("qwen3-moe-nvfp4", {"sglang": "0.5.16", "runner": CUTEDSL, "gpu": "B300"}, "kernel_for_another_gpu", None, ""),
        (
            "qwen3.5-moe-mixed",
            {"sglang": "0.5.16", "runner": CUTEDSL, "a2a": "deepep", "tp": 2},
            "deepep_normal_dispatch",
            "fails_at_first_forward",
            "normal format",
        ),
        (
            "qwen3.5-moe-mixed",
            {"sglang": "0.5.16", "runner": CUTEDSL, "a2a": "deepep", "tp": 2, "deepep_mode": "low_latency"},
            "deepep_normal_dispatch",
            None,
            "",
        ),
        ("qwen3.5-moe-mixed", {"sglang": "0.5.17", "runner": CUTEDSL, "a2a": "deepep", "tp": 2}, "deepep_normal_dispatch", None, ""),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": "triton", "a2a": "deepep", "tp": 2},
            "deepep_deprecated_path",
            "fails_at_first_forward",
            "contiguous",
        ),
        (
            "qwen3-moe-nvfp4",
            {"sglang": "0.5.16", "runner": "triton", "a2a": "deepep", "tp": 2, "env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}},
            "deepep_deprecated_path",
            "fails_to_load",
            "DeepEP DeepEPMode.AUTO mode requires deep_gemm",
        ),
        ("deepseek-v4-hybrid-config", {"sglang": "0.5.16", "runner": CUTEDSL}, "swiglu_limit_dropped", "wrong_output", CUTEDSL),
        ("deepseek-v4-hybrid-config", {"sglang": "0.5.16", "runner": CUTLASS}, "swiglu_limit_dropped", "wrong_output", CUTLASS),
        ("deepseek-v4-hybrid-config", {"sglang": "0.5.21", "runner": CUTLASS}, "swiglu_limit_dropped", None, ""),
        ("deepseek-v4-hybrid-config", {"sglang": "0.5.16", "runner": ROUTED}, "swiglu_limit_dropped", None, ""),
        ("qwen3.5-moe-w4a16-mixed", {"sglang": "0.5.16", "runner": TRTLLM}, "weight_only_experts_as_w4a4", "wrong_output", "never written"),
        ("qwen3.5-moe-w4a16-mixed", {"sglang": "0.5.17", "runner": TRTLLM}, "weight_only_experts_as_w4a4", "off_path", "1.0"),
        ("qwen3.5-moe-w4a16-mixed", {"sglang": "0.5.17", "runner": "marlin"}, "weight_only_experts_as_w4a4", None, ""),
    ],
)
def test_rules(checkpoint, values, rule, severity, text):
    findings = found(checkpoint, **values)
    if severity is None:
        assert f"route.{rule}" not in findings
    else:
        assert findings[f"route.{rule}"][0] == severity
        assert text in findings[f"route.{rule}"][1]


@pytest.mark.parametrize(
    ("version", "values", "rule", "severity"),
    [
        ("0.5.16", {}, "other_experts_on_triton", "note"),
        ("0.5.16", {"tp": 2, "ep": 2}, "other_experts_wrong_ids", "wrong_output"),
        ("0.5.22", {"tp": 2, "ep": 2}, "other_experts_wrong_ids", "wrong_output"),
        ("0.5.23", {"tp": 2, "ep": 2}, "other_experts_on_triton", "note"),
        ("0.5.16", {"a2a": "deepep", "tp": 2, "deepep_mode": "low_latency"}, "other_experts_cannot_dispatch", "fails_at_first_forward"),
        ("0.5.23", {"a2a": "deepep", "tp": 2}, "deepep_deprecated_path", "fails_at_first_forward"),
    ],
)
def test_fp8_experts_of_a_mixed_checkpoint_under_cutedsl(version, values, rule, severity):
    """The remark in the source says such a checkpoint is rejected at load; it is not."""
    findings = found("qwen3-moe-mixed-fp8-layer", sglang=version, runner=CUTEDSL, **values)
    assert findings[f"route.{rule}"][0] == severity
    assert not any(key.startswith("load.") for key in findings)


def test_what_triton_cannot_read_is_named_as_sglang_names_it():
    values = {"sglang": "0.5.16", "runner": CUTEDSL, "a2a": "deepep", "tp": 2, "deepep_mode": "low_latency"}
    observed = found("qwen3-moe-mixed-fp8-layer", **values)["route.other_experts_cannot_dispatch"][1]
    assert observed == "AssertionError: Pre-permute function for deepep_ll to triton is not registered"


def mixed(algorithm: str, **text):
    layers = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}, "model.layers.1.mlp.experts": {"quant_algo": algorithm}}
    section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_quant_algo": None}
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "num_attention_heads": 8,
        "quantization_config": section,
    }
    return from_configs(algorithm, config | text)


def test_fp8_block_experts_have_no_runner_until_0_5_20():
    for version, severity in (("0.5.19", "fails_at_first_forward"), ("0.5.20", None)):
        findings = found(mixed("MXFP8"), sglang=version, runner=CUTLASS)
        assert findings.get("route.fp8_block_runner_missing", (None,))[0] == severity


@pytest.mark.parametrize("version", ["0.5.15", "0.5.16", "0.5.23"])
def test_the_two_heuristics_that_know_modelopt_fp4_only(version):
    attention = {"tp": 4, "dp": 4, "enable_dp_attention": True, "sglang": version, "runner": CUTLASS}
    over_a2a, gathered = attention | {"a2a": "flashinfer"}, attention | {"ep": 4}
    assert found(mixed("NVFP4"), **over_a2a)["route.nvfp4_dispatch_off"][0] == "off_path"
    assert found(mixed("NVFP4"), **gathered)["route.fp4_all_gather_off"][0] == "off_path"
    assert "route.nvfp4_dispatch_off" not in found(mixed("NVFP4"), **over_a2a, env={"SGLANG_MOE_NVFP4_DISPATCH": "1"})
    for rule, values in (("nvfp4_dispatch_off", over_a2a), ("fp4_all_gather_off", gathered)):
        assert f"route.{rule}" not in found(mixed("NVFP4"), **values, quantization="modelopt_fp4")


def test_a_draft_model_loses_its_quantization_from_0_5_15_to_0_5_19():
    layers = {"model.language_model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}, "mtp.layers.0.mlp.experts": {"quant_algo": "FP8_PB_WO"}}
    section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_quant_algo": None}
    text = {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 1,
        "full_attention_interval": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_size": 256,
        "moe_intermediate_size": 256,
    }
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "quantization_config": section,
    }
    checkpoint = from_configs("draft", config)
    for version, severity in (("0.5.19", "wrong_output"), ("0.5.20", None)):
        on = deployment(sglang=version, runner=TRTLLM, speculative_algorithm="EAGLE")
        findings = {f.id: f.severity for f in consequences(*parts(checkpoint, on))}
        assert findings.get("route.draft_quantization_dropped") == severity
    on = deployment(sglang="0.5.19", runner=TRTLLM)
    assert "route.draft_quantization_dropped" not in {f.id for f in consequences(*parts(checkpoint, on))}


def test_a_refused_deployment_builds_nothing():
    on = deployment(sglang="0.5.15", runner=CUTEDSL)
    checkpoint, detection, admission, routing, on = parts("qwen3.5-moe-mixed", on)
    assert not admission.accepted
    assert consequences(checkpoint, detection, admission, routing, on) == ()


@pytest.mark.parametrize(
    ("version", "name", "flag"),
    [
        ("0.5.12.post1", "qwen3-moe-nvfp4", False),
        ("0.5.13", "qwen3-moe-nvfp4", True),
        ("0.5.15", "qwen3.5-moe-mixed", False),
        ("0.5.16", "qwen3.5-moe-mixed", True),
        ("0.5.23", "qwen3.5-moe-mixed", True),
    ],
)
def test_deprecate_flag_is_where_pr_30443_changed_the_layer(version, name, flag):
    on = deployment(sglang=version, runner=CUTEDSL, a2a="deepep", tp=2)
    case = Case(*parts(name, on)[:2], *parts(name, on)[2:])
    assert case.layer_class == "DeepEPMoE"
    assert case.deprecate_flag("ModelOptNvFp4FusedMoEMethod") is flag


def test_0_5_23_looks_at_the_layers_own_runner():
    for version, flag in (("0.5.22", True), ("0.5.23", False)):
        on = deployment(sglang=version, runner=CUTEDSL, a2a="deepep", tp=2)
        assert Case(*parts("qwen3-moe-mixed-fp8-layer", on)).deprecate_flag("ModelOptFp8MoEMethod") is flag
