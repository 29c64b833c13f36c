"""What each release calls a checkpoint, by its two JSON copies."""

import pytest

from helpers.checkpoint import Checkpoint, from_configs, open_checkpoint
from helpers.deployment import RELEASES, deployment, release
from helpers.stages.detect import detect, supported_methods, verify_flag
from helpers.stages.verdict import judge

# quant_algo -> name in 0.5.14, 0.5.15, 0.5.17, 0.5.18 and 0.5.23 when the checkpoint is flat.
FLAT = {
    "FP8": ("modelopt_fp8",) * 5,
    "NVFP4": ("modelopt_fp4",) * 5,
    "NVFP4_AWQ": ("modelopt_fp4",) * 5,
    "W4A16_NVFP4": ("modelopt_fp4",) * 5,
    "MXFP4": ("modelopt_fp4",) * 5,
    "MXFP8": ("modelopt_fp8", "modelopt_fp8", "modelopt_fp8", "mxfp8", "mxfp8"),
    "FP8_PB_WO": ("modelopt_fp8", "modelopt_fp8", "modelopt_fp8", "modelopt", "modelopt"),
    "W4AFP8": ("modelopt_fp8", "modelopt_fp8", "modelopt_fp8", "modelopt", "modelopt"),
    "W4A8_AWQ": ("modelopt",) * 5,
    "nvfp4": ("modelopt",) * 5,
    "mixed_precision": ("modelopt",) * 5,
}
WHEN = ("0.5.14", "0.5.15", "0.5.17", "0.5.18", "0.5.23")


def named(algorithm: str, version: str, **more) -> str | None:
    config = {"architectures": ["Qwen3MoeForCausalLM"], "quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm} | more}
    return detect(from_configs("flat", config), release(version)).quantization


@pytest.mark.parametrize("algorithm", FLAT)
def test_flat_algorithm_names(algorithm):
    assert tuple(named(algorithm, version) for version in WHEN) == FLAT[algorithm]


@pytest.mark.parametrize(
    ("layers", "before", "after"),
    [
        ({"a.experts": {"quant_algo": "NVFP4"}, "a.q": {"quant_algo": "FP8"}}, "w4afp8", "modelopt_mixed"),
        ({"a.experts": {"quant_algo": "nvfp4"}}, "w4afp8", "modelopt_mixed"),
        ({"a.experts": {"quant_algo": "W4A16_NVFP4"}}, "w4afp8", "modelopt_mixed"),
        ({"a.experts": {"quant_algo": "NVFP4_AWQ"}}, "w4afp8", "w4afp8"),
        ({"a.q": {"quant_algo": "FP8"}}, "w4afp8", "w4afp8"),
        ({}, "w4afp8", "w4afp8"),
    ],
)
def test_mixed_is_named_by_its_content_from_0_5_15(layers, before, after):
    assert named("MIXED_PRECISION", "0.5.14", quantized_layers=layers) == before
    assert named("MIXED_PRECISION", "0.5.15", quantized_layers=layers) == after
    assert named("MIXED_PRECISION", "0.5.23", quantized_layers=layers) == after


def test_nemotron_was_mixed_before_0_5_15():
    for config in ({"architectures": ["NemotronHForCausalLM"]}, {"architectures": ["X"], "model_type": "nemotron_h"}):
        checkpoint = from_configs("n", config | {"quantization_config": {"quant_algo": "MIXED_PRECISION"}})
        assert detect(checkpoint, release("0.5.14")).quantization == "modelopt_mixed"
        assert detect(checkpoint, release("0.5.15")).quantization == "w4afp8"


def test_the_real_mixed_export_is_named_in_every_release():
    checkpoint = open_checkpoint("qwen3.5-moe-mixed")
    names = {known.version: detect(checkpoint, known).quantization for known in RELEASES}
    assert {version for version, name in names.items() if name == "w4afp8"} == {
        known.version for known in RELEASES if not known.at_least("0.5.15")
    }
    assert set(names.values()) == {"w4afp8", "modelopt_mixed"}


@pytest.mark.parametrize(
    ("flag", "version", "name"),
    [
        (None, "0.5.15", "modelopt_mixed"),
        ("modelopt_fp4", "0.5.15", "modelopt_mixed"),
        ("modelopt", "0.5.23", "modelopt_mixed"),
        ("FP8", "0.5.16", "modelopt_mixed"),
        ("quark_mxfp4", "0.5.17", "modelopt_mixed"),
        ("quark_mxfp4", "0.5.18", "quark_mxfp4"),
    ],
)
def test_a_modelopt_checkpoint_wins_over_the_flag(flag, version, name):
    checkpoint = open_checkpoint("qwen3-moe-mixed")
    detection = detect(checkpoint, release(version))
    assert verify_flag(detection, flag, release(version)).quantization == name


def test_a_flag_against_another_method_is_refused_with_sglangs_text():
    config = {"architectures": ["X"], "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    checkpoint = from_configs("fp8", config)
    verified = verify_flag(detect(checkpoint, release("0.5.16")), "modelopt_fp4", release("0.5.16"))
    assert (verified.error, verified.message) == (
        "ValueError",
        "Quantization method specified in the model config (fp8) does not match the quantization "
        "method specified in the `quantization` argument (modelopt_fp4).",
    )
    assert verify_flag(detect(checkpoint, release("0.5.18")), "modelopt_fp4", release("0.5.18")).quantization == "modelopt_fp4"


def test_an_unknown_method_names_all_known_ones():
    config = {"architectures": ["X"], "quantization_config": {"quant_method": "mxfp6"}}
    detection = detect(from_configs("odd", config), release("0.5.23"))
    assert detection.message.startswith("Unknown quantization method: mxfp6. Must be one of ['fp8', 'mxfp8', 'minimax_m3_nvfp4',")
    assert detection.quantization is None
    assert [finding.severity for finding in detection.findings] == ["refused"]


def test_supported_methods_follow_the_release():
    assert "nvfp4_online" not in supported_methods(release("0.5.13.post1"))
    assert "nvfp4_online" in supported_methods(release("0.5.14"))
    assert {"qoq", "fbgemm_fp8"} <= set(supported_methods(release("0.5.15.post1"))) - set(supported_methods(release("0.5.16")))


def test_hybrid_meta_starts_at_0_5_14_and_reads_config_json_only():
    section = {
        "quant_method": "fp8",
        "quant_algo": "MIXED_PRECISION",
        "moe_quant_algo": "NVFP4",
        "group_size": "16",
        "ignore": ["head"],
        "activation_scheme": "dynamic",
    }
    checkpoint = from_configs("hybrid", {"architectures": ["DeepseekV4ForCausalLM"], "quantization_config": section})
    assert detect(checkpoint, release("0.5.13.post1")).nvfp4_moe_meta is None
    detection = detect(checkpoint, release("0.5.14"))
    assert detection.nvfp4_moe_meta == {"group_size": 16, "exclude_modules": ["head"]}
    assert detection.quantization == "fp8"
    by_file = from_configs("file", {"architectures": ["DeepseekV4ForCausalLM"]}, {"quantization": section})
    assert detect(by_file, release("0.5.16")).nvfp4_moe_meta is None


def test_the_copy_the_layers_are_built_from():
    layers = {"m.experts": {"quant_algo": "NVFP4"}}
    inline = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    file = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    without = from_configs("a", {"architectures": ["X"], "quantization_config": inline}, file)
    with_cache = from_configs("b", {"architectures": ["X"], "quantization_config": inline | {"kv_cache_quant_algo": None}}, file)
    assert detect(without, release("0.5.16")).copy == "hf_quant_config.json"
    assert detect(with_cache, release("0.5.16")).copy == "config.json"
    assert detect(from_configs("c", {"architectures": ["X"]}, file), release("0.5.16")).copy == "hf_quant_config.json"
    assert detect(from_configs("d", {"architectures": ["X"]}), release("0.5.16")).copy == "none"


def test_a_flat_file_is_a_key_error_until_0_5_20():
    checkpoint = from_configs("f", {"architectures": ["X"]}, {"quant_algo": "NVFP4", "group_size": 16})
    before, after = detect(checkpoint, release("0.5.19")), detect(checkpoint, release("0.5.20"))
    assert (before.error, before.message) == ("KeyError", "'quantization'")
    assert after.quantization == "modelopt_fp4"


def test_a_null_quant_algo_in_a_foreign_config_is_refused():
    section = {"quant_method": "fp8", "quant_algo": None, "activation_scheme": "dynamic"}
    detection = detect(from_configs("n", {"architectures": ["X"], "quantization_config": section}), release("0.5.16"))
    assert (detection.error, detection.message) == ("AttributeError", "'NoneType' object has no attribute 'upper'")


def nested(name: str, **changed) -> Checkpoint:
    """The checkpoint with its quantization_config moved into text_config."""
    config = dict(open_checkpoint(name).config) | changed
    config["text_config"] = config["text_config"] | {"quantization_config": config.pop("quantization_config")}
    return from_configs("nested", config)


def test_a_config_class_of_sglangs_own_loses_a_section_that_stands_in_text_config_alone():
    """Every real release builds this checkpoint unquantised, without a message."""
    judgement = judge(nested("qwen3.5-moe-mixed"), deployment())
    assert (judgement.detection.quantization, judgement.routing.expert_kinds) == (None, {(None, "UnquantizedFusedMoEMethod")})
    assert (judgement.verdict.outcome, judgement.verdict.deciding.id) == ("fails_to_load", "detect.nested_section_lost")


@pytest.mark.parametrize("name", ["nvidia--Gemma-4-26B-A4B-NVFP4", "nvidia--Kimi-K2.5-NVFP4"])
def test_other_config_classes_keep_it(name):
    """Gemma 4's is transformers' own, for which get_config copies it; Kimi's copies it itself."""
    same = detect(open_checkpoint(name), release("0.5.23")), detect(nested(name), release("0.5.23"))
    assert same[0].quantization == same[1].quantization is not None
    assert not [finding for finding in same[1].findings if "nested" in finding.id or "text_config" in finding.id]


def test_an_unknown_model_type_makes_the_verdict_abstain():
    verdict = judge(nested("qwen3.5-moe-mixed", model_type="qwen9"), deployment()).verdict
    assert "detect.only_in_text_config" in [finding.id for finding in verdict.findings]


def test_a_file_beside_a_lost_section_names_the_quantisation_and_the_layers_are_built_from_the_section():
    checkpoint = nested("qwen3.5-moe-mixed")
    both = from_configs("both", checkpoint.config, open_checkpoint("qwen3.5-moe-mixed").hf_quant)
    detection = detect(both, release("0.5.16"))
    assert (detection.quantization, detection.copy, detection.findings) == ("modelopt_mixed", "config.json", ())
