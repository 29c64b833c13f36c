"""Load rules that the configuration alone proves: cutting experts over ranks, group size, the GPU's generation."""

import json
import shutil

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.deployment import deployment
from helpers.stages.admit import admit
from helpers.stages.consequences import consequences
from helpers.stages.detect import detect
from helpers.stages.route import route
from helpers.stages.verdict import judge

CUTEDSL, CUTLASS, TRTLLM = "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm"
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
FLAT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": []}


def found(intermediate=512, section=FLAT, model=None, **values) -> dict[str, tuple[str, str, str]]:
    config = (CONFIG | {"moe_intermediate_size": intermediate} if model is None else model) | {"quantization_config": section}
    checkpoint, on = from_configs("generated", config), deployment(**({"quantization": "modelopt_fp4"} | values))
    detection = detect(checkpoint, on.release)
    admission = admit(checkpoint, detection, on)
    assert admission.accepted, admission.message
    routing = route(checkpoint, detection, on.release, admission.model_quantization)
    return {f.id: (f.severity, f.observed, f.remedy) for f in consequences(checkpoint, detection, admission, routing, on)}


@pytest.mark.parametrize("version", ["0.5.11", "0.5.16", "0.5.23"])
@pytest.mark.parametrize(("tp", "aligned"), [(4, True), (8, True), (16, False)])
def test_cutedsl_interleaves_in_64_rows(version, tp, aligned):
    """I 1024 over 16 ranks leaves 64 rows, over 32 would leave 32: use 512 for the side that fails."""
    findings = found(1024 if aligned else 512, sglang=version, runner=CUTEDSL, tp=tp)
    if aligned:
        assert "load.gated_rows_not_aligned" not in findings
    else:
        severity, observed, remedy = findings["load.gated_rows_not_aligned"]
        assert (severity, remedy) == ("fails_to_load", "--moe-runner-backend flashinfer_trtllm")
        assert "Expected split dim divisible by group_size=64, got 32." in observed


def test_cutlass_and_the_deepep_layout_pad_instead():
    observed = found(320, sglang="0.5.16", runner=CUTLASS, tp=8)["load.gated_rows_not_aligned"][1]
    assert observed.startswith("AssertionError: The intermediate size required padding, but padding is also implemented for gated")
    v1 = found(96, sglang="0.5.16", runner=CUTEDSL, a2a="deepep", tp=2, deepep_mode="low_latency")
    assert "AssertionError" in v1["load.gated_rows_not_aligned"][1]


def test_trtllm_and_marlin_have_a_layout_of_their_own():
    assert "load.gated_rows_not_aligned" not in found(320, sglang="0.5.16", runner=TRTLLM, tp=8)
    assert "load.gated_rows_not_aligned" not in found(320, sglang="0.5.16", runner="marlin", tp=8)


def test_whole_experts_a_rank_are_the_way_out():
    assert found(512, sglang="0.5.16", runner=CUTEDSL, tp=8, ep=8).get("load.gated_rows_not_aligned") is None
    assert found(320, sglang="0.5.16", runner=CUTEDSL, tp=8)["load.gated_rows_not_aligned"][2] == "--ep-size 8"


def nemotron(intermediate):
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "ME",
        "num_hidden_layers": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_size": 512,
        "moe_intermediate_size": intermediate,
        "mlp_hidden_act": "relu2",
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    }


def test_experts_without_a_gate_are_padded_and_need_whole_scale_groups_only():
    """Nemotron-3 Nano: I 1856 over 8 ranks is 232, which is 14.5 scale groups."""
    findings = found(model=nemotron(1856), sglang="0.5.16", runner=CUTLASS, tp=8)
    assert findings["load.scale_groups_cut"][0] == "wrong_output"
    assert "load.gated_rows_not_aligned" not in findings
    assert "load.scale_groups_cut" not in found(model=nemotron(1856), sglang="0.5.16", runner=CUTLASS, tp=4)


def test_ranks_must_divide_experts_and_width():
    assert "not a multiple of 8" in found(516, sglang="0.5.16", runner=TRTLLM, tp=8)["load.experts_not_divisible"][1]
    findings = found(model=CONFIG | {"moe_intermediate_size": 512, "num_experts": 6}, sglang="0.5.16", runner=TRTLLM, tp=4, ep=4)
    assert "6 is not a multiple of 4" in findings["load.experts_not_divisible"][1]


@pytest.mark.parametrize(("runner", "severity"), [(CUTEDSL, "fails_to_load"), (CUTLASS, "wrong_output")])
def test_group_size_16_is_built_in(runner, severity):
    assert found(section=FLAT | {"group_size": 32}, sglang="0.5.16", runner=runner)["load.group_size_not_16"][0] == severity
    assert "load.group_size_not_16" not in found(sglang="0.5.16", runner=runner)


@pytest.mark.parametrize(("tp", "severity"), [(4, None), (8, "fails_to_load")])
def test_block_fp8_experts_need_whole_blocks(tp, severity):
    section = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    findings = found(section=section, sglang="0.5.16", runner="triton", tp=tp, quantization="fp8")
    assert findings.get("load.fp8_blocks_cut", (None,))[0] == severity
    if severity:
        assert "gate's and up's weight = 64 is not divisible by weight quantization block_n = 128." in findings["load.fp8_blocks_cut"][1]


def test_runners_without_an_nvfp4_path_keep_all_input_scales():
    assert found(sglang="0.5.16", runner="triton", tp=2, ep=2)["load.input_scales_not_sliced"][0] == "fails_to_load"
    assert "load.input_scales_not_sliced" not in found(sglang="0.5.16", runner=CUTLASS, tp=2, ep=2)


def test_the_loader_compares_the_gpu_with_the_configs_minimum():
    assert found(sglang="0.5.12", gpu="H100")["load.gpu_below_minimum"][1] == (
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. "
        "Minimum capability: 100. Current capability: 90."
    )
    assert "load.gpu_below_minimum" not in found(sglang="0.5.13", gpu="H100")
    fp8 = FLAT | {"quant_algo": "FP8"}
    assert "Minimum capability: 89. Current capability: 80." in found(section=fp8, sglang="0.5.16", gpu="A100")["load.gpu_below_minimum"][1]


def test_without_dimensions_the_rules_abstain():
    model = {key: value for key, value in CONFIG.items() if key != "num_experts_per_tok"}
    findings = found(model=model | {"moe_intermediate_size": 512}, sglang="0.5.16", runner=CUTEDSL, tp=16)
    assert findings["load.geometry_unknown"][0] == "abstained"
    assert "load.gated_rows_not_aligned" not in findings


def nemotron_export(folder):
    """The bundled export with the number of Mamba groups where SGLang reads it."""
    exported = open_checkpoint("nemotron-h-nvfp4-repaired")
    for file in ("hf_quant_config.json", "model.safetensors"):
        shutil.copy(exported.path / file, folder)
    (folder / "config.json").write_text(json.dumps(exported.config | {"mamba_n_groups": exported.config["n_groups"]}))
    return folder


def test_an_embedding_that_nemotrons_loader_does_not_know_is_wrong_output(tmp_path):
    exported = open_checkpoint(nemotron_export(tmp_path))
    assert "backbone.embedding.weight" in exported.tensors
    for version in ("0.5.11", "0.5.16", "0.5.23"):
        decided = judge(exported, deployment(sglang=version)).verdict.deciding
        assert (decided.id, decided.severity, decided.stage) == ("load.embedding_not_loaded", "wrong_output", "load")


def test_an_embedding_under_the_hubs_name_is_fine(tmp_path):
    file = nemotron_export(tmp_path) / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"backbone.embedding.weight"', b'"backbone.embeddings.weight"').strip()
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert judge(open_checkpoint(tmp_path), deployment()).verdict.outcome == "serves"


def test_transformers_name_of_the_mamba_groups_is_not_read():
    decided = judge(open_checkpoint("nemotron-h-nvfp4-repaired"), deployment()).verdict.deciding
    assert (decided.id, decided.severity) == ("load.mamba_groups_not_read", "fails_to_load")
    assert decided.remedy == 'add "mamba_n_groups": 2 to config.json'


@pytest.mark.parametrize(("name", "severity"), [("gpt-oss-nvfp4", "fails_to_load"), ("llama4-nvfp4", "wrong_output")])
def test_experts_in_one_tensor_are_not_loaded(name, severity):
    verdict = judge(open_checkpoint(name), deployment(runner="flashinfer_cutlass")).verdict
    assert verdict.outcome == severity
    assert severity in {finding.severity for finding in verdict.findings if finding.id == "load.fused_experts"}


def test_experts_in_a_layer_that_the_class_builds_dense():
    decided = judge(open_checkpoint("glm-moe-dsa-nvfp4"), deployment(runner="flashinfer_cutlass")).verdict.deciding
    assert (decided.id, decided.severity) == ("load.experts_built_dense", "fails_to_load")
    assert decided.remedy == "set first_k_dense_replace to 1 in config.json"
    deepseek = judge(open_checkpoint("deepseek-v3-mixed"), deployment(runner="flashinfer_cutlass")).verdict
    assert "load.experts_built_dense" not in {finding.id for finding in deepseek.findings}


def test_marlin_pads_no_tile():
    observed = found(352 // 2, sglang="0.5.16", runner="marlin")["load.marlin_tiles"][1]
    assert observed == "RuntimeError: size_n = 352 is not divisible by tile_n_size = 64"
    assert "load.marlin_tiles" not in found(192, sglang="0.5.16", runner="marlin")


def test_ranks_left_out_of_every_expert_group_fail():
    assert found(tp=3, ep=2)["load.ranks_do_not_divide"][0] == "fails_to_load"
    assert "load.ranks_do_not_divide" not in found(tp=4, ep=2)


def test_attention_heads_are_shared_out_among_the_ranks():
    severity, observed, remedy = found(tp=16, ep=16)["load.heads_do_not_divide"]
    assert (severity, observed, remedy) == ("fails_to_load", "AssertionError: 8 is not divisible by 16", "--tp-size 8")
    assert "load.heads_do_not_divide" not in found(tp=16, ep=16, dp=2, enable_dp_attention=True)
    assert "load.heads_do_not_divide" not in found(tp=8, ep=8)


@pytest.mark.parametrize(
    ("name", "tp", "number", "file"),
    [
        ("qwen3.5-moe-mixed", 4, 2, "layers/attention/vision.py"),  # the vision tower's heads; the text model has 4
        ("nvidia--MiniMax-M2.5-NVFP4", 6, 8, "models/minimax_m2.py"),  # 48 heads divide, 8 KV heads neither divide nor are divided
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 16, 8, "layers/attention/mamba/mamba.py"),  # Mamba's groups
    ],
)
def test_not_only_attention_heads_are_shared_out(name, tp, number, file):
    launch = {"sglang": "0.5.16", "runner": TRTLLM}
    findings = judge(open_checkpoint(name), deployment(tp=tp, **launch)).verdict.findings
    uneven = [finding for finding in findings if finding.id == "load.heads_do_not_divide"]
    assert {finding.observed for finding in uneven} == {f"AssertionError: {number} is not divisible by {tp}"}
    assert any(file in finding.source for finding in uneven)
    fits = judge(open_checkpoint(name), deployment(tp=tp // 2 if tp != 6 else 4, **launch)).verdict.findings
    assert not [finding for finding in fits if finding.id == "load.heads_do_not_divide"]


def test_gemma_4_shares_its_heads_out_among_all_ranks():
    launch = {"sglang": "0.5.16", "runner": TRTLLM, "tp": 8, "dp": 8, "enable_dp_attention": True}
    ids = {name: [finding.id for finding in judge(open_checkpoint(name), deployment(**launch)).verdict.findings] for name in GEMMA_AND_QWEN}
    assert ["load.heads_do_not_divide" in ids[name] for name in GEMMA_AND_QWEN] == [True, False]


GEMMA_AND_QWEN = ("gemma4-nvfp4", "qwen3-moe-mixed")  # both have 4 heads


def test_some_moe_blocks_want_an_expert_for_each_rank():
    launch = {"sglang": "0.5.16", "runner": TRTLLM, "tp": 16, "dp": 16, "enable_dp_attention": True}
    findings = judge(open_checkpoint("qwen3-moe-mixed"), deployment(**launch)).verdict.findings
    assert "Tensor parallel size 16 is greater than the number of experts 8." in next(
        finding.observed for finding in findings if finding.id == "load.more_ranks_than_experts"
    )
