"""The quantisation config each class builds from the JSON, and the texts it refuses with, by release."""

import pytest

from helpers.checkpoint import from_configs
from helpers.deployment import release
from helpers.stages.detect import detect
from helpers.stages.route import route

MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
EXPERTS = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}
MODEL = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1, "num_experts": 8}


def routed(section, version, *, file=None, model=MODEL, quantization=None):
    config = dict(model) if section is None else model | {"quantization_config": section}
    checkpoint = from_configs("c", config, file)
    on = release(version)
    return route(checkpoint, detect(checkpoint, on), on, quantization)


def experts(routing):
    return next(module for module in routing.modules if module.kind == "experts")


@pytest.mark.parametrize(
    ("section", "version", "error", "message"),
    [
        (
            {"quant_algo": "W4A16_NVFP4", "group_size": 16, "ignore": []},
            "0.5.18",
            "ValueError",
            "ModelOpt currently only supports: FP8, NVFP4, NVFP4_AWQ quantizations in sglang.",
        ),
        (
            {"quant_algo": "NVFP4_AWQ", "group_size": 16, "ignore": []},
            "0.5.16",
            "ValueError",
            "ModelOpt currently only supports: FP8, NVFP4 quantizations in sglang.",
        ),
        (
            {"quant_algo": "NVFP4", "ignore": []},
            "0.5.16",
            "ValueError",
            "NVFP4 quantization requires group_size and exclude_modules specified",
        ),
        (
            {"quant_algo": "NVFP4", "group_size": 16, "ignore": None},
            "0.5.23",
            "ValueError",
            "NVFP4 quantization requires group_size and exclude_modules specified",
        ),
        ({"quant_algo": "MXFP4"}, "0.5.23", "ValueError", "ModelOpt currently only supports: FP8, NVFP4, NVFP4_AWQ, W4A16_NVFP4 quant"),
        ({"quant_algo": "FP8_PB_WO"}, "0.5.18", "ValueError", "ModelOptFp8Config only supports regular FP8 quantization, but found 'FP8_P"),
        ({"quant_algo": "W4A8_AWQ"}, "0.5.16", "ValueError", "ModelOptFp8Config only supports static FP8 quantization in SGLang."),
        ({"quant_method": "fp8"}, "0.5.16", "ValueError", "Cannot find any of ['activation_scheme'] in the model's quantization config."),
    ],
)
def test_what_from_config_refuses(section, version, error, message):
    routing = routed({"quant_method": "modelopt"} | section, version)
    assert routing.error == error
    assert routing.message.startswith(message)
    assert [(f.id, f.severity) for f in routing.findings] == [("route.config_unloadable", "fails_to_load")]


@pytest.mark.parametrize(
    ("section", "first"),
    [
        ({"quant_algo": "NVFP4_AWQ"}, "0.5.17"),
        ({"quant_algo": "W4A16_NVFP4"}, "0.5.19"),
        ({"quant_algo": "NVFP4"}, "0.5.17"),  # without group_size
    ],
)
def test_when_a_flat_form_became_loadable(section, first):
    section = {"quant_method": "modelopt", "ignore": []} | section
    before = {"0.5.17": "0.5.16", "0.5.19": "0.5.18"}[first]
    assert routed(section, before).error
    assert not routed(section, first).error


@pytest.mark.parametrize(("key", "first"), [("ignore", "0.5.11"), ("exclude_modules", "0.5.23"), ("modules_to_not_convert", "0.5.23")])
def test_which_key_excludes_in_a_flat_config(key, first):
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, key: ["model.layers.0.mlp.experts"]}
    for version in ("0.5.22", "0.5.23"):
        excluded = experts(routed(section, version)).excluded_by
        assert (excluded == "model.layers.0.mlp.experts") == release(version).at_least(first), version


def test_a_mixed_config_reads_exclude_modules_from_0_5_17():
    section = MIXED | {"quantized_layers": EXPERTS, "exclude_modules": ["*mlp.experts"]}
    assert experts(routed(section, "0.5.16")).method == "ModelOptNvFp4FusedMoEMethod"
    assert experts(routed(section, "0.5.17")).method == "UnquantizedFusedMoEMethod"


def test_block_fp8_layers_must_agree_on_their_size_from_0_5_21():
    layers = EXPERTS | {"a": {"quant_algo": "FP8_PB_WO", "group_size": 128}, "b": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 64}}
    section = MIXED | {"quantized_layers": layers, "ignore": []}
    assert not routed(section, "0.5.20").error
    message = "MIXED_PRECISION currently requires all block-FP8 layers to use one group_size, got [64, 128]."
    assert routed(section, "0.5.21").message == message


def test_the_group_size_is_the_first_nvfp4_entrys():
    layers = {"a": {"quant_algo": "FP8", "group_size": 128}, "b": {"quant_algo": "W4A16_NVFP4", "group_size": 32}} | EXPERTS
    assert routed(MIXED | {"quantized_layers": layers}, "0.5.16").spec.group_size == 32


def test_a_file_without_excludes_needs_0_5_20_where_the_class_renames():
    """NVIDIA's Nemotron-3-Super stub: KeyError in get_quant_config's remap_prefix."""
    model = {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "ME"}
    file = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    assert routed(None, "0.5.19", file=file, model=model).error == "KeyError"
    assert routed(None, "0.5.20", file=file, model=model).error == ""


def test_a_file_that_names_modelopt_is_read_by_its_own_algorithm():
    section = {key: MIXED[key] for key in ("quant_method", "quant_algo")} | {"quantized_layers": EXPERTS}
    file = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": []}}
    assert routed(section, "0.5.16", file=file).quant_config == "ModelOptFp4Config"
    assert routed(section, "0.5.16", file=file | {"producer": {"name": "x"}}).message == (
        "ModelOptMixedPrecisionConfig only supports MIXED_PRECISION checkpoints."
    )


def test_a_flag_without_any_quantization_needs_a_config_file_until_0_5_18():
    assert routed(None, "0.5.17", quantization="modelopt_fp4").message == "Cannot find the config file for modelopt_fp4"
    late = routed(None, "0.5.18", quantization="modelopt_fp4")
    assert [m.method for m in late.modules if m.kind == "experts"] == ["ModelOptNvFp4OnlineFusedMoEMethod"]
    assert {m.method for m in late.modules if m.kind == "linear"} == {"UnquantizedLinearMethod"}
    assert routed(None, "0.5.23", quantization="modelopt_mixed").message == "Cannot find the config file for modelopt_mixed"


def test_the_hybrid_form_gives_nvfp4_to_experts_only():
    section = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "quant_algo": "MIXED_PRECISION",
        "moe_quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["model.layers.1.mlp.experts"],
    }
    routing = routed(section, "0.5.16", model=MODEL | {"num_hidden_layers": 2})
    assert routing.quant_config == "HybridFp8NvFp4Config"
    assert [m.method for m in routing.modules if m.kind == "experts"] == ["ModelOptNvFp4FusedMoEMethod", "Fp8MoEMethod"]
    assert {m.method for m in routing.modules if m.kind == "linear"} == {"Fp8LinearMethod"}
    assert routed(section, "0.5.13.post1").quant_config == "Fp8Config"


def test_compressed_tensors_finds_the_group_by_target():
    section = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "ignore": ["re:.*self_attn.*", "lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                "input_activations": {"num_bits": 4, "type": "float"},
            }
        },
    }
    routing = routed(section, "0.5.16")
    by_name = {module.prefix: module for module in routing.modules}
    assert by_name["model.layers.0.mlp.experts"].method == "CompressedTensorsFusedMoEMethod"
    assert by_name["model.layers.0.mlp.experts"].algo == "NVFP4"
    assert by_name["model.layers.0.self_attn.o_proj"].method == "UnquantizedLinearMethod"
    section["config_groups"]["group_0"]["targets"] = ["re:.*down_proj"]
    assert routed(section, "0.5.16").message.startswith("Unable to find matching target for model.layers.0.mlp.experts.0.gate_proj")


def test_deepseek_v4_insists_on_block_scales_for_wo_a_until_0_5_20():
    model = {"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 1, "n_routed_experts": 8}
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    assert routed(fp8, "0.5.16", model=model).message == "FP8 quant_config must create weight_scale_inv"
    assert routed(fp8 | {"weight_block_size": [128, 128]}, "0.5.16", model=model).error == ""
    flat = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": []}
    assert routed(flat, "0.5.20", model=model).message == "FP8 quant_config must create weight_scale_inv"
    wo_a = next(m for m in routed(flat, "0.5.21", model=model).modules if m.prefix.endswith("wo_a"))
    assert (wo_a.method, wo_a.unless) == ("UnquantizedLinearMethod", "unquantised")


def test_an_unquantised_checkpoint_asks_for_no_method():
    routing = routed(None, "0.5.16")
    assert routing.quant_config == ""
    assert {module.unless for module in routing.modules} == {"not quantised"}
