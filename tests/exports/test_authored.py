"""The authored configs: remade byte for byte, and true to the real thing they stand for wherever one can be asked."""

import json
import re
import runpy
from collections import Counter
from importlib.resources import files

import pytest

from helpers.paths import CHECKPOINTS

SCRIPT = runpy.run_path(str(CHECKPOINTS / "authored_configs.py"))
JSON_COPIES = ("config.json", "hf_quant_config.json")


def read(folder: str, name: str) -> dict:
    return json.loads((CHECKPOINTS / folder / name).read_text())


def published(name: str) -> dict:
    """A real published file as aiconfigurator-core ships it."""
    return json.loads(files("aiconfigurator_core").joinpath("model_configs", name).read_text())


def kinds(quantized_layers: dict) -> Counter:
    """(module name without its layer number, entry) of a map, counted."""
    return Counter((re.sub(r"\d+", "N", name), json.dumps(entry)) for name, entry in quantized_layers.items())


@pytest.mark.parametrize("name", SCRIPT["AUTHORED"])
def test_remade_byte_for_byte(name, tmp_path):
    SCRIPT["write_authored"](name, tmp_path / name)
    made = {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
    assert made == {file.name: file.read_bytes() for file in (CHECKPOINTS / name).iterdir()}


@pytest.mark.parametrize("name", SCRIPT["AUTHORED"])
def test_transformers_reads_it(name):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(CHECKPOINTS / name)
    assert config.model_type == read(name, "config.json")["model_type"]


@pytest.mark.parametrize("copy", JSON_COPIES)
def test_full_size_map_has_the_key_kinds_of_the_real_tiny_export(copy):
    place = "quantization_config" if copy == "config.json" else "quantization"
    tiny, full = (read(name, copy)[place]["quantized_layers"] for name in ("qwen3.5-moe-mixed", "qwen3.5-397b-v2-config"))
    assert {kind: count * 15 for kind, count in kinds(tiny).items()} == kinds(full)
    assert len(full) == 435


def test_full_size_map_keeps_the_exporters_order_and_groups():
    quantization = read("qwen3.5-397b-v2-config", "config.json")["quantization_config"]
    names = list(quantization["quantized_layers"])
    numbers = [int(re.search(r"layers\.(\d+)\.", name).group(1)) for name in names]
    assert numbers == sorted(numbers) and set(numbers) == set(range(60))
    targets = [group["targets"] for group in quantization["config_groups"].values()]
    assert [len(group) for group in targets] == [375, 60]
    assert all(group == sorted(group) for group in targets)
    assert sorted(name for group in targets for name in group) == sorted(names)
    assert list(quantization) == list(read("qwen3.5-moe-mixed", "config.json")["quantization_config"])


def test_full_size_geometry_is_the_published_one():
    ours, real = read("qwen3.5-397b-v2-config", "config.json"), published("nvidia--Qwen3.5-397B-A17B-NVFP4_config.json")
    assert ours["architectures"] == real["architectures"]
    for part in ("text_config", "vision_config"):
        # V1's vision tower repeats the outer model_type; its end-of-text id belongs to a tokenizer, which a tiny export has not.
        shared = (ours[part].keys() & real[part].keys()) - {"model_type", "eos_token_id"}
        assert {key: ours[part][key] for key in shared} == {key: real[part][key] for key in shared}
    missing = real["text_config"].keys() - ours["text_config"].keys()
    assert missing == {"dtype", "mtp_use_dedicated_embeddings"}


def test_hybrid_says_what_the_published_one_says():
    name = "deepseek-v4-hybrid-config"
    ours, real = read(name, "config.json"), published("nvidia--DeepSeek-V4-Flash-NVFP4_config.json")
    assert {**ours, "dtype": None} == {key: value for key, value in real.items() if key in ours} | {"dtype": None}
    assert read(name, "hf_quant_config.json") == published("nvidia--DeepSeek-V4-Flash-NVFP4_hf_quant_config.json")


def test_bare_and_compressed_tensors_have_the_geometry_they_name():
    for name, real in (
        ("w4afp8-bare-config", published("nvidia--DeepSeek-V3.1-NVFP4_config.json")),
        ("compressed-tensors-nvfp4-config", published("Qwen--Qwen3-30B-A3B_config.json")),
    ):
        ours = {key: value for key, value in read(name, "config.json").items() if key not in ("dtype", "quantization_config")}
        assert ours == {key: real[key] for key in ours}
    assert not (CHECKPOINTS / "compressed-tensors-nvfp4-config" / "hf_quant_config.json").exists()


def test_compressed_tensors_library_reads_its_scheme():
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

    config = read("compressed-tensors-nvfp4-config", "config.json")["quantization_config"]
    group = QuantizationConfig.model_validate(config).config_groups["group_0"]
    preset = preset_name_to_scheme("NVFP4", ["Linear"])
    for part in ("weights", "input_activations"):
        ours, theirs = getattr(group, part), getattr(preset, part)
        for field in ("num_bits", "type", "symmetric", "group_size", "strategy", "dynamic"):
            assert getattr(ours, field) == getattr(theirs, field), (part, field)
