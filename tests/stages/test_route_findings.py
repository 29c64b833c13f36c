"""What a routing alone proves: names and formats that do not fit what the checkpoint stores."""

import pytest

from helpers.checkpoint import Checkpoint, from_configs, open_checkpoint
from helpers.deployment import release
from helpers.stages.detect import detect
from helpers.stages.route import route


def findings(checkpoint: Checkpoint, version: str = "0.5.16") -> dict[str, str]:
    on = release(version)
    found = route(checkpoint, detect(checkpoint, on), on).findings
    return {finding.id: finding.severity for finding in found}


def mixed(layers: dict, *, ignore=(), architecture="Qwen3MoeForCausalLM", **model) -> Checkpoint:
    section = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {name: {"quant_algo": algorithm} for name, algorithm in layers.items()},
        "kv_cache_quant_algo": None,
        "ignore": list(ignore),
    }
    config = {"architectures": [architecture], "num_hidden_layers": 2, "num_experts": 4, "quantization_config": section}
    return from_configs("generated", config | model)


EXPERTS = {f"model.layers.{layer}.mlp.experts": "NVFP4" for layer in (0, 1)}


def test_a_clean_map_has_no_finding():
    assert findings(mixed(EXPERTS)) == {}


@pytest.mark.parametrize(
    ("second", "severity"),
    [("FP8", "fails_to_load"), ("W4A16_NVFP4", "wrong_output")],
)
def test_experts_that_disagree_inside_a_block(second, severity):
    layers = {"model.layers.0.mlp.experts.0.gate_proj": "NVFP4", "model.layers.0.mlp.experts.1.gate_proj": second}
    assert findings(mixed(layers | {"model.layers.1.mlp.experts": "NVFP4"}))["route.expert_block_disagrees"] == severity


def test_experts_that_agree_are_not_reported():
    layers = {f"model.layers.0.mlp.experts.{expert}.gate_proj": "NVFP4" for expert in range(4)}
    assert "route.expert_block_disagrees" not in findings(mixed(layers | {"model.layers.1.mlp.experts": "NVFP4"}))


@pytest.mark.parametrize(("algorithm", "severity"), [("FP8", "wrong_output"), ("NVFP4", "fails_to_load")])
def test_a_fused_projection_listed_in_part(algorithm, severity):
    layers = EXPERTS | {"model.layers.0.self_attn.q_proj": algorithm}
    assert findings(mixed(layers))["route.packed_partly_listed"] == severity
    whole = layers | {f"model.layers.0.self_attn.{part}_proj": algorithm for part in "qkv"}
    assert "route.packed_partly_listed" not in findings(mixed(whole))


def test_an_exclude_that_reaches_a_listed_block():
    assert findings(mixed(EXPERTS, ignore=["1"])) == {"route.excluded_though_quantized": "fails_to_load"}
    fp8 = {"model.layers.0.mlp.experts": "NVFP4", "model.layers.1.mlp.experts": "FP8"}
    assert findings(mixed(fp8, ignore=["model.layers.1*"])) == {"route.excluded_though_quantized": "wrong_output"}


def test_an_algorithm_the_release_does_not_serve():
    layers = EXPERTS | {"model.layers.0.self_attn.o_proj": "MXFP8"}
    assert findings(mixed(layers), "0.5.16") == {"route.algorithm_without_method": "wrong_output"}
    assert findings(mixed(layers), "0.5.17") == {}


def test_keys_that_no_module_asks_for_are_a_note():
    assert findings(mixed(EXPERTS | {"mtp.layers.0.mlp.experts": "FP8"})) == {"route.map_keys_never_read": "note"}


def test_deepseeks_fused_gate_up_is_not_found_in_a_mixed_map():
    """The class has no packed parts for gate_up_proj: the map's gate_proj and up_proj are never looked at, on any release."""
    for version in ("0.5.16", "0.5.23"):
        assert findings(open_checkpoint("deepseek-v3-mixed"), version)["route.name_not_found"] == "wrong_output"


def test_lost_excludes_meet_unquantised_tensors():
    """ModelOpt 0.47 writes corrupted names for Nemotron-H: nothing is excluded, and BF16 tensors meet NVFP4 parameters."""
    assert findings(open_checkpoint("nemotron-h-nvfp4"))["route.stored_otherwise"] == "fails_to_load"
    assert findings(open_checkpoint("nemotron-h-nvfp4-repaired")) == {}


def test_a_corrupted_map_still_names_its_modules():
    """The corruption is appended to each name, so every key is a child of the module it should have named, and is found as such."""
    checkpoint, on = open_checkpoint("nemotron-h-mixed"), release("0.5.16")
    routing = route(checkpoint, detect(checkpoint, on), on)
    assert {module.how for module in routing.modules if module.kind == "experts"} == {"child"}
    assert not [finding for finding in routing.findings if finding.severity != "note"]


@pytest.mark.parametrize("name", ["qwen3.5-moe-mixed", "qwen3-moe-nvfp4", "qwen3-moe-mixed", "minimax-m2-nvfp4", "llama4-nvfp4"])
def test_sound_exports_have_nothing_against_them(name):
    assert {key: value for key, value in findings(open_checkpoint(name)).items() if value != "note"} == {}
