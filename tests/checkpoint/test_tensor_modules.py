"""What a module is by its tensors, and the findings where map, names or geometry say otherwise."""

import json
import struct

import pytest

from helpers.checkpoint import KINDS, fact_rows, module_rows, open_checkpoint, tensor_rows
from helpers.checkpoint.tensor_modules import classify

NVFP4 = [("weight", "U8", (64, 32)), ("weight_scale", "F8_E4M3", (64, 4)), ("weight_scale_2", "F32", ()), ("input_scale", "F32", ())]


@pytest.mark.parametrize(
    ("parts", "algorithm"),
    [
        (NVFP4, "NVFP4"),
        (NVFP4[:3], "W4A16_NVFP4"),
        ([("weight", "F4", (64, 64)), *NVFP4[1:]], "NVFP4"),
        (
            [
                ("weight_packed", "U8", (64, 32)),
                ("weight_scale", "F8_E4M3", (64, 4)),
                ("weight_global_scale", "F32", (1,)),
                ("input_global_scale", "F32", (1,)),
            ],
            "NVFP4",
        ),
        ([("weight_packed", "U8", (64, 32)), ("weight_scale", "F8_E4M3", (64, 4)), ("weight_global_scale", "F32", (1,))], "W4A16_NVFP4"),
        ([*NVFP4, ("pre_quant_scale", "BF16", (64,))], "NVFP4"),
        ([("weight", "F8_E4M3", (64, 64)), ("weight_scale", "F32", ()), ("input_scale", "F32", ())], "FP8"),
        ([("weight", "F8_E4M3", (64, 64)), ("weight_scale", "F32", (1,))], "FP8"),
        ([("weight", "F8_E4M3", (64, 64)), ("weight_scale", "F32", (64, 1))], "FP8_PER_CHANNEL_PER_TOKEN"),
        ([("weight", "F8_E4M3", (64, 64)), ("weight_scale", "U8", (64, 2))], "MXFP8"),
        ([("weight", "F8_E4M3", (64, 64)), ("weight_scale_inv", "U8", (64, 2))], "MXFP8"),
        ([("weight", "F8_E4M3", (256, 256)), ("weight_scale_inv", "F32", (2, 2))], "FP8_BLOCK_SCALES"),
        ([("weight", "F8_E4M3", (256, 256)), ("scale", "F8_E8M0", (2, 2))], "FP8_BLOCK_SCALES"),
        ([("blocks", "U8", (4, 64, 2, 16)), ("scales", "U8", (4, 64, 2))], "MXFP4"),
        ([("weight", "BF16", (64, 64))], "BF16"),
        ([("weight", "BF16", (64, 64)), ("bias", "BF16", (64,))], "BF16"),
        ([("weight", "BF16", (64,))], None),
        ([("k_scale", "F32", ())], None),
        ([("qweight", "I32", (64, 8)), ("scales", "F16", (1, 64))], "INT4"),
        (NVFP4[:1], "incomplete: U8 weight without weight_scale"),
        (NVFP4[:2], "incomplete: NVFP4 weight and weight_scale without weight_scale_2"),
        ([("weight", "F8_E4M3", (64, 64))], "incomplete: FP8 weight without weight_scale"),
    ],
)
def test_formats(parts, algorithm):
    assert classify(parts) == algorithm


@pytest.mark.parametrize(
    ("name", "block", "fused", "experts", "projections", "algorithms"),
    [
        ("qwen3.5-moe-mixed", "model.language_model.layers.0.mlp.experts", False, 8, ("down_proj", "gate_proj", "up_proj"), {"NVFP4": 24}),
        ("qwen3-moe-w4a16", "model.layers.1.mlp.experts", False, 8, ("down_proj", "gate_proj", "up_proj"), {"W4A16_NVFP4": 24}),
        ("qwen3-moe-mixed-fp8-layer", "model.layers.1.mlp.experts", False, 8, ("down_proj", "gate_proj", "up_proj"), {"FP8": 24}),
        ("minimax-m2-nvfp4", "model.layers.0.block_sparse_moe.experts", False, 8, ("w1", "w2", "w3"), {"NVFP4": 24}),
        ("nemotron-h-nvfp4", "backbone.layers.1.mixer.experts", False, 8, ("down_proj", "up_proj"), {"NVFP4": 16}),
        ("gemma4-nvfp4", "model.layers.0.experts", False, 4, ("down_proj", "gate_proj", "up_proj"), {"NVFP4": 12}),
        ("llama4-nvfp4", "model.layers.0.feed_forward.experts", True, 4, ("down_proj", "gate_up_proj"), {"NVFP4": 2}),
        ("gpt-oss-nvfp4", "model.layers.0.mlp.experts", True, 4, ("down_proj", "gate_up_proj"), {"NVFP4": 2}),
    ],
)
def test_blocks_of_real_exports(name, block, fused, experts, projections, algorithms):
    made = open_checkpoint(name).modules.blocks[block]
    assert (made.fused, made.experts, made.projections, made.algorithms) == (fused, tuple(range(experts)), projections, algorithms)


def nvfp4(module, rows, columns, input_scale=True):
    tensors = {
        f"{module}.weight": ("U8", [rows, columns // 2]),
        f"{module}.weight_scale": ("F8_E4M3", [rows, columns // 16]),
        f"{module}.weight_scale_2": ("F32", []),
    }
    return tensors | ({f"{module}.input_scale": ("F32", [])} if input_scale else {})


def fp8(module, rows, columns):
    return {f"{module}.weight": ("F8_E4M3", [rows, columns]), f"{module}.weight_scale": ("F32", [])}


def bf16(module, rows, columns):
    return {f"{module}.weight": ("BF16", [rows, columns])}


def expert(layer, number, form=nvfp4, hidden=64, inner=32):
    block = f"model.layers.{layer}.mlp.experts.{number}"
    return form(f"{block}.gate_proj", inner, hidden) | form(f"{block}.up_proj", inner, hidden) | form(f"{block}.down_proj", hidden, inner)


@pytest.fixture
def write(tmp_path):
    """write(tensors, layers=…, **quant): a checkpoint of two layers with two experts each, hidden 64, inner 32."""

    def make(tensors, layers=None, **quant):
        header, position = {}, 0
        for name, (dtype, shape) in tensors.items():
            size = {"F32": 4, "BF16": 2}.get(dtype, 1)
            for dimension in shape:
                size *= dimension
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
            position += size
        raw = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * position)
        quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [], "kv_cache_scheme": None, **quant}
        if layers is not None:
            quantization |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": {n: {"quant_algo": a} for n, a in layers.items()}}
        config = {"num_hidden_layers": 2, "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 2, "num_experts_per_tok": 1}
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
        return {finding.id: finding for finding in open_checkpoint(tmp_path).findings}

    return make


WHOLE = expert(0, 0) | expert(0, 1) | expert(1, 0) | expert(1, 1)
ATTENTION = "model.layers.0.self_attn.q_proj"


def test_a_checkpoint_that_agrees_with_itself_has_no_findings(write):
    assert write(WHOLE) == write(WHOLE, quant_algo="NVFP4_AWQ") == {}
    assert write(WHOLE | bf16(ATTENTION, 64, 64), ignore=["model.layers.0.self_attn*"]) == {}
    assert (
        write(
            WHOLE | fp8(ATTENTION, 64, 64), {"model.layers.0.mlp.experts": "NVFP4", "model.layers.1.mlp.experts": "nvfp4", ATTENTION: "FP8"}
        )
        == {}
    )


def test_one_expert_of_another_format_in_a_block(write):
    found = write(WHOLE | expert(1, 1, bf16))
    # The names of expert 1 of layer 1 now have BF16 weights beside the scales of before.
    assert found["load.tensors_differ_from_map"].severity == "fails_to_load"
    assert found["load.tensors_differ_from_map"].observed == "1 routed experts with tensors of BF16"


@pytest.mark.parametrize(
    ("form", "said", "severity"),
    [
        (bf16, "NVFP4", "fails_to_load"),
        (fp8, "NVFP4", "fails_to_load"),
        (nvfp4, "FP8", "fails_to_load"),
        (nvfp4, None, "fails_to_load"),
        (fp8, None, "wrong_output"),
        (bf16, "FP8", "wrong_output"),
        (fp8, "MXFP8", "abstained"),
        (lambda *a: nvfp4(*a, input_scale=False), "NVFP4", "abstained"),
        (nvfp4, "W4A16_NVFP4", "note"),
        (lambda module, rows, columns: {f"{module}.weight": ("U8", [rows, columns // 2])}, "NVFP4", "wrong_output"),
    ],
)
def test_what_a_disagreement_about_a_named_module_proves(write, form, said, severity):
    layers = {"model.layers.0.mlp.experts": "NVFP4", "model.layers.1.mlp.experts": "NVFP4"} | ({ATTENTION: said} if said else {})
    finding = write(WHOLE | form(ATTENTION, 64, 64), layers)["load.tensors_differ_from_map"]
    assert (finding.severity, finding.stage) == (severity, "load")
    assert ATTENTION in finding.read and (said or "unquantised") in finding.expected


def test_a_flat_map_proves_nothing_about_a_module_that_it_does_not_name(write):
    assert write(WHOLE | bf16(ATTENTION, 64, 64))["load.tensors_differ_from_map"].severity == "abstained"
    assert write(WHOLE | bf16("model.layers.0.mlp.gate", 2, 64) | bf16("model.visual.blocks.0.attn.qkv", 64, 64)) == {}


def test_per_expert_keys_are_held_against_single_experts(write):
    layers = {module.removesuffix(".weight"): "NVFP4" for module in WHOLE if module.endswith(".weight")}
    assert write(WHOLE, layers) == {}
    layers["model.layers.1.mlp.experts.1.up_proj"] = "FP8"
    finding = write(WHOLE, layers)["load.tensors_differ_from_map"]
    assert finding.read == "config.json against the tensors of model.layers.1.mlp.experts.1.up_proj"


def test_names_that_match_nothing(write, tmp_path):
    layers = {"model.layers.0.mlp.experts": "NVFP4", "model.layers.1.mlp.experts": "NVFP4", "model.layers.7.mlp.experts": "NVFP4"}
    write(WHOLE | bf16("lm_head", 8, 64), layers, ignore=["lm_head", "mtp*", "*.shared_expert.*", "model.layers.*.self_attn"])
    assert [(finding.id, finding.severity, finding.observed) for finding in open_checkpoint(tmp_path).findings] == [
        ("detect.names_match_nothing", "note", "1 of 3 keys of quantized_layers match no tensor: model.layers.7.mlp.experts"),
        (
            "detect.names_match_nothing",
            "note",
            "3 of 4 exclude patterns match no tensor: mtp*, *.shared_expert.*, model.layers.*.self_attn",
        ),
    ]


@pytest.mark.parametrize(
    ("hidden", "inner", "severity"),
    [(128, 32, "fails_to_load"), (64, 64, "wrong_output"), (64, 16, "abstained"), (32, 64, "fails_to_load")],
)
def test_shapes_other_than_the_configurations(write, hidden, inner, severity):
    tensors = {}
    for layer in (0, 1):
        for number in (0, 1):
            tensors |= expert(layer, number, hidden=hidden, inner=inner)
    finding = write(tensors)["load.geometry_differs"]
    assert finding.severity == severity
    assert f"hidden {hidden} and inner {inner} in model.layers.0.mlp.experts, 64 and 32 in config.json" in finding.observed


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (expert(0, 0) | expert(0, 1) | expert(1, 0), "1 experts in model.layers.1.mlp.experts, 2 in config.json"),
        (expert(0, 0) | expert(0, 1) | expert(1, 0) | expert(1, 2), "2 experts in model.layers.1.mlp.experts, 2 in config.json"),
        (expert(0, 0) | expert(0, 1), "no experts in layers 1"),
        ({name: form for name, form in WHOLE.items() if "gate_proj" not in name}, "has no gate projection, and silu is gated"),
    ],
)
def test_missing_experts(write, tensors, says):
    finding = write(tensors)["load.experts_missing"]
    assert finding.severity == "wrong_output" and says in finding.observed


def test_nothing_is_said_to_be_missing_when_a_file_could_not_be_read(write, tmp_path):
    write(expert(0, 0) | expert(0, 1), ignore=["lm_head"])
    (tmp_path / "other.safetensors").write_bytes(b"")
    assert {finding.id for finding in open_checkpoint(tmp_path).findings} == {"load.file_refused"}


def test_rows_for_tables():
    checkpoint = open_checkpoint("qwen3.5-moe-mixed")
    assert {row["dtype"]: row["tensors"] for row in tensor_rows(checkpoint)} == {"U8": 96, "F8_E4M3": 121, "BF16": 60, "F32": 244}
    blob = (checkpoint.path / "model.safetensors").read_bytes()
    assert sum(row["bytes"] for row in tensor_rows(checkpoint)) == len(blob) - 8 - int.from_bytes(blob[:8], "little")
    rows = module_rows(checkpoint)
    assert {"kind": "routed experts", "by_map": "NVFP4", "by_tensors": "NVFP4", "modules": 4} in rows
    assert {"kind": "router", "by_map": "unquantised", "by_tensors": "BF16", "modules": 8} in rows
    assert all(row["kind"] in KINDS for row in rows)
    assert {"what": "routed experts", "value": "8, 2 a token"} in fact_rows(checkpoint)


def test_rows_of_configurations_alone():
    checkpoint = open_checkpoint("nvidia--MiniMax-M3-NVFP4")
    assert tensor_rows(checkpoint) == []
    assert {"kind": "routed experts", "by_map": "NVFP4", "by_tensors": "not examined", "modules": 57} in module_rows(checkpoint)
    assert {"what": "tensors", "value": "configurations only"} in fact_rows(checkpoint)
