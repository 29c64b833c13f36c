"""What data/checkpoints promises to everyone who reads it: real files, small, complete, about this repository alone."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from helpers.paths import CHECKPOINTS

SIZE_LIMIT = 1.6e6  # bytes
PLACEHOLDER = ".\0backbone.pt_name_sentinel"

FOLDERS = sorted(path for path in CHECKPOINTS.iterdir() if (path / "config.json").exists())
EXPORTS = [path for path in FOLDERS if not path.name.endswith("-config")]
AUTHORED = [path for path in FOLDERS if path.name.endswith("-config")]
REPAIRED = [path for path in EXPORTS if path.name.endswith("-repaired")]

every_export = pytest.mark.parametrize("folder", EXPORTS, ids=lambda path: path.name)
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def strings(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def test_there_are_enough_of_each_kind():
    assert len(EXPORTS) >= 10
    assert len(AUTHORED) >= 4
    assert len(REPAIRED) == 2


def test_readme_names_exactly_what_is_there():
    rows = re.findall(r"^\| `([^`]+)` \|", (CHECKPOINTS / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [folder.name for folder in FOLDERS]


@every_folder
def test_is_small(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < SIZE_LIMIT


@every_export
def test_has_both_json_copies_in_agreement(folder):
    inline, beside = read(folder / "config.json")["quantization_config"], read(folder / "hf_quant_config.json")
    assert inline["producer"] == beside["producer"] == {"name": "modelopt", "version": "0.47.0"}
    assert inline["quant_algo"] == beside["quantization"]["quant_algo"]
    assert inline.get("quantized_layers") == beside["quantization"].get("quantized_layers")
    assert inline["ignore"] == beside["quantization"].get("exclude_modules", [])


@every_export
def test_tensors_are_readable(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = list(file.keys())
        kinds = {str(file.get_tensor(name).dtype) for name in names}
    assert names
    assert {"torch.uint8", "torch.float8_e4m3fn", "torch.float32", "torch.bfloat16"} == kinds


@every_folder
def test_says_nothing_about_the_machine_it_was_made_on(folder):
    for path in folder.glob("*.json"):
        for text in strings(read(path)):
            assert text != "_name_or_path"
            assert not re.match(r"[/~\\]|[A-Za-z]:[\\/]|\w+://", text), f"{path.name}: {text}"


@pytest.mark.parametrize("repaired", REPAIRED, ids=lambda path: path.name)
def test_repaired_copy_differs_only_in_names(repaired):
    corrupted = repaired.with_name(repaired.name.removesuffix("-repaired"))
    assert (corrupted / "model.safetensors").read_bytes() == (repaired / "model.safetensors").read_bytes()
    assert (corrupted / "generation_config.json").read_bytes() == (repaired / "generation_config.json").read_bytes()
    for name in ("config.json", "hf_quant_config.json"):
        broken, whole = read(corrupted / name), read(repaired / name)
        marked = [text for text in strings(broken) if PLACEHOLDER in text]
        assert marked
        assert not [text for text in strings(whole) if "\0" in text or "sentinel" in text]
        assert [text.replace(PLACEHOLDER, "") for text in strings(broken)] == list(strings(whole))


@pytest.mark.parametrize("repaired", REPAIRED, ids=lambda path: path.name)
def test_repaired_names_are_modules_of_the_checkpoint(repaired):
    with safe_open(repaired / "model.safetensors", framework="pt") as file:
        tensors = list(file.keys())
    quantization = read(repaired / "hf_quant_config.json")["quantization"]
    names = [*quantization.get("quantized_layers", {}), *quantization.get("exclude_modules", [])]
    unmatched = {name for name in names if not any(tensor.startswith(f"{name.removesuffix('*').rstrip('.')}.") for tensor in tensors)}
    # The embedding's tensor is saved as backbone.embedding.weight: transformers renames on reading what it does not undo on saving.
    assert unmatched == {"backbone.embeddings"} & set(names)
    assert len(names) > len(unmatched)


def test_script_knows_exactly_what_is_there(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKPOINTS))
    script = runpy.run_path(str(CHECKPOINTS / "make.py"))
    assert sorted(script["EXPORTS"]) == [folder.name for folder in EXPORTS]
    assert sorted(script["AUTHORED"]) == [folder.name for folder in AUTHORED]
