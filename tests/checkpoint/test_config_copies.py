"""The two JSON copies: read safely, told apart, compared."""

import json

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.checkpoint.config_copies import MAX_CONFIG_BYTES
from helpers.errors import InputError

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("not json", "not JSON"),
        ("[1, 2]", "a JSON list where an object is needed"),
        ("3", "a JSON int where an object is needed"),
        ("null", "a JSON NoneType where an object is needed"),
        (DEEP, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_bad_json_is_one_line_that_names_the_file(tmp_path, file, content, says):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=says) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / file)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": [3]}, "architectures is"),
        ({"architectures": "Qwen3MoeForCausalLM"}, "architectures is"),
        ({"model_type": 5}, "model_type is 5"),
        ({"text_config": {"model_type": None}}, "model_type is None"),
        ({"text_config": [1]}, "text_config is a list"),
        ({"thinker_config": {"text_config": {"num_hidden_layers": 1.5}}}, "num_hidden_layers is 1.5"),
        *(({"num_hidden_layers": layers}, "num_hidden_layers is") for layers in (0, -4, None, True, "4", [4], 10**8)),
    ],
)
def test_a_value_that_every_stage_relies_on_has_its_type(tmp_path, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=says) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ") and "\n" not in str(caught.value)


def test_a_config_of_200_mb_is_refused_unread(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(InputError, match="209,715,200 bytes, more than the 67,108,864"):
        open_checkpoint(tmp_path)


def test_a_config_at_the_limit_is_read(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": 1}' + b" " * (MAX_CONFIG_BYTES - 8))
    assert open_checkpoint(tmp_path).config == {"a": 1}


def test_python_json_is_accepted_as_transformers_accepts_it(tmp_path):
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "x": NaN}')
    assert open_checkpoint(tmp_path).config["time_step_limit"] == [0.0, float("inf")]


def test_a_key_given_twice_is_a_finding_and_the_last_one_counts(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_algo": "FP8", "quant_algo": "NVFP4"}}')
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.layer_map.quant_algo == "NVFP4"
    assert [(finding.id, finding.observed) for finding in checkpoint.reading] == [
        ("detect.key_given_twice", "given twice in one object: quant_algo")
    ]


def test_a_folder_without_config_json(tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json; name a checkpoint's folder"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("quant", "says"),
    [
        ([], "quantization_config is a list, not an object"),
        ("nvfp4", "quantization_config is a str, not an object"),
        ({"quant_algo": 4}, "quantization_config.quant_algo is '4' (int), not str"),
        ({"quantized_layers": []}, "quantization_config.quantized_layers is '[]' (list), not dict"),
        ({"quantized_layers": {"a": "NVFP4"}}, "quantization_config.quantized_layers.a is 'NVFP4' (str), not object"),
        ({"quantized_layers": {"a": {}}}, "quantization_config.quantized_layers.a.quant_algo is 'None' (NoneType), not str"),
        ({"quantized_layers": {"a": {"quant_algo": 4}}}, "quantization_config.quantized_layers.a.quant_algo is '4' (int), not str"),
        (
            {"quantized_layers": {"a": {"quant_algo": "NVFP4", "group_size": "16"}}},
            "quantization_config.quantized_layers.a.group_size is '16' (str), not int",
        ),
        ({"ignore": "lm_head"}, "quantization_config.ignore is 'lm_head' (str), not a list of names"),
        ({"ignore": [1]}, "quantization_config.ignore is '[1]' (list), not a list of names"),
        ({"group_size": True}, "quantization_config.group_size is 'True' (bool), not int"),
        ({"config_groups": []}, "quantization_config.config_groups is '[]' (list), not dict"),
        ({"config_groups": {"g": []}}, "quantization_config.config_groups.g is '[]' (list), not object"),
    ],
)
def test_a_wrong_type_in_the_quantisation_is_one_line_that_names_the_key(quant, says):
    with pytest.raises(InputError) as caught:
        _ = from_configs("x", {"quantization_config": quant}).layer_map
    assert says in str(caught.value)


def test_a_wrong_type_in_the_second_copy_names_the_second_copy():
    with pytest.raises(InputError, match=r"hf_quant_config\.json: quantization is a list"):
        _ = from_configs("x", {}, {"quantization": []}).layer_map


MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
LAYERS = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}


@pytest.mark.parametrize(
    ("inline", "file", "name_copy", "layer_copy"),
    [
        (None, None, "none", "none"),
        (None, {"quant_algo": "NVFP4"}, "hf_quant_config.json", "hf_quant_config.json"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"quant_algo": "FP8"}, "config.json", "config.json"),
        ({**MIXED, "quantized_layers": LAYERS, "kv_cache_scheme": None}, {}, "config.json", "config.json"),
        ({**MIXED, "quantized_layers": LAYERS, "kv_cache_quant_algo": None}, {}, "config.json", "config.json"),
        ({**MIXED, "quantized_layers": LAYERS}, {}, "config.json", "hf_quant_config.json"),
        ({**MIXED, "kv_cache_scheme": None}, {}, "config.json", "config.json"),
        ({**MIXED, "quantized_layers": {"a": {"quant_algo": "FP8"}}}, {}, "config.json", "config.json"),
        ({**MIXED, "quantized_layers": {"a": {"quant_algo": "nvfp4"}}}, {}, "config.json", "hf_quant_config.json"),
        ({**MIXED, "quantized_layers": LAYERS}, None, "config.json", "config.json"),
        ({**MIXED, "quant_method": "fp8", "quantized_layers": LAYERS}, {}, "config.json", "config.json"),
    ],
)
def test_which_copy_sglang_reads(inline, file, name_copy, layer_copy):
    config = {} if inline is None else {"quantization_config": inline}
    checkpoint = from_configs("x", config, None if file is None else {"quantization": file})
    assert checkpoint.copies_read[:2] == (name_copy, layer_copy)
    assert checkpoint.layer_map.copy == layer_copy


def disagreement(inline, file):
    found = [finding for finding in from_configs("x", {"quantization_config": inline}, {"quantization": file}).findings]
    assert [finding.id for finding in found] in ([], ["detect.copies_disagree"])
    return found[0].observed if found else ""


def test_copies_that_say_the_same_in_their_two_ways_agree():
    inline = {
        **MIXED,
        "quantized_layers": LAYERS,
        "ignore": ["b", "a"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["x"]}},
    }
    file = {"quant_algo": "MIXED_PRECISION", "quantized_layers": LAYERS, "exclude_modules": ["a", "b"], "kv_cache_quant_algo": "FP8"}
    assert disagreement(inline, file) == ""


@pytest.mark.parametrize(
    ("inline", "file", "says"),
    [
        ({"quant_algo": "NVFP4"}, {"quant_algo": "FP8"}, "algorithm: NVFP4 in config.json, FP8 in hf_quant_config.json"),
        ({"kv_cache_scheme": None}, {"kv_cache_quant_algo": "FP8"}, "KV cache: None in config.json, FP8 in hf_quant_config.json"),
        ({"group_size": 16}, {"group_size": 32}, "group size: 16 in config.json, 32 in hf_quant_config.json"),
        ({"ignore": ["a", "b"]}, {"exclude_modules": ["a"]}, "excluded only in config.json: b"),
        ({"quantized_layers": LAYERS}, {"quantized_layers": {}}, "in the map of config.json only: model.layers.0.mlp.experts"),
        (
            {"quantized_layers": {"m": {"quant_algo": "FP8_PB_WO"}}},
            {"quantized_layers": {"m": {"quant_algo": "FP8_BLOCK_SCALES"}}},
            "algorithm of m is FP8_PB_WO in config.json and FP8_BLOCK_SCALES in hf_quant_config.json (two spellings of one format)",
        ),
        (
            {"quantized_layers": {"m": {"quant_algo": "FP8"}}},
            {"quantized_layers": {"m": {"quant_algo": "NVFP4"}}},
            "algorithm of m is FP8 in config.json and NVFP4 in hf_quant_config.json",
        ),
    ],
)
def test_contradictory_copies_are_a_finding_that_lists_what_differs(inline, file, says):
    assert disagreement(inline, file) == says


def test_the_real_disagreement_of_qwen36_is_found():
    findings = open_checkpoint("nvidia--Qwen3.6-35B-A3B-NVFP4").findings
    assert [finding.observed for finding in findings] == ["KV cache: None in config.json, FP8 in hf_quant_config.json"]
    assert "hf_quant_config.json" in findings[0].why


def test_json_that_is_read_is_what_json_says(tmp_path):
    content = {"a": [1, 2.5, None, True, {"b": "ü"}], "quantization_config": {"quant_method": "modelopt"}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": content}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == content and checkpoint.hf_quant == {"quantization": content}
