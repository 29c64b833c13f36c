"""Checkpoints with one thing wrong in one block of experts: what a differential asks the releases to load, and a notebook shows."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.checkpoint import Checkpoint, open_checkpoint
from helpers.errors import unknown


@dataclass
class Files:
    """A checkpoint's content, to be changed in place. block: the experts' common name; experts: how many there are."""

    config: dict
    hf_quant: dict | None
    tensors: dict
    block: str
    experts: int

    def of(self, expert: int | str = r"\d+", projection: str = r"\w+", suffix: str = r"\w+") -> list[str]:
        """The names of the block's tensors; a part that is not given matches all."""
        wanted = re.compile(rf"{re.escape(self.block)}\.{expert}\.{projection}\.{suffix}")
        return [name for name in self.tensors if wanted.fullmatch(name)]

    def drop(self, names: list[str]):
        for name in names:
            del self.tensors[name]

    def change(self, names: list[str], function: Callable):
        for name in names:
            self.tensors[name] = function(self.tensors[name])

    @property
    def quantisations(self) -> list[dict]:
        """Both copies' sections, those that exist."""
        inline = self.config.get("quantization_config")
        return [section for section in (inline, (self.hf_quant or {}).get("quantization")) if section is not None]

    @property
    def text(self) -> dict:
        return self.config.get("text_config", self.config)


# Projections by what they are; the second names are MiniMax's, and a block without a gate has no FIRST.
FIRST, SECOND, DOWN = "(?:gate_proj|w1)", "(?:up_proj|w3)", "(?:down_proj|w2)"


def _as(dtype: str) -> Callable:
    import torch

    return lambda tensor: tensor.to(getattr(torch, dtype))


def _unpacked(dtype: str) -> Callable:
    """Twice the columns: what a matrix looks like that was never packed."""
    import torch

    return lambda tensor: torch.zeros(tensor.shape[0], tensor.shape[1] * 2, dtype=getattr(torch, dtype))


def _reinterpreted(scales):
    """Block scales as the bytes they are; an FP8 layer's one scale has no block to be of."""
    import torch

    return scales.view(torch.uint8) if scales.dim() == 2 else scales


def extra_expert(files: Files):
    for name in files.of(0):
        files.tensors[name.replace(f"{files.block}.0.", f"{files.block}.{files.experts}.")] = files.tensors[name].clone()


def unknown_suffix(files: Files):
    for name in files.of(0, DOWN, "weight"):
        files.tensors[name.replace(".weight", ".pre_quant_scale")] = files.tensors[name][0].float()


def draft_names(files: Files):
    for name in files.of(0):
        files.tensors["mtp.layers.0.mlp.experts." + name.removeprefix(f"{files.block}.")] = files.tensors[name].clone()


def narrower(columns: int) -> Callable[[Files], None]:
    """An intermediate size of `columns`, in the configuration and in every tensor of the block."""

    def change(files: Files):
        for name in files.of(projection=f"(?:{FIRST}|{SECOND})", suffix="weight|weight_scale"):
            if files.tensors[name].dim() == 2:
                files.tensors[name] = files.tensors[name][:columns].clone()
        for name in files.of(projection=DOWN, suffix="weight|weight_scale"):
            tensor = files.tensors[name]
            if tensor.dim() == 2:
                packed = 2 if str(tensor.dtype) == "torch.uint8" else 16 if name.endswith("_scale") else 1
                files.tensors[name] = tensor[:, : columns // packed].clone()
        for key in ("moe_intermediate_size", "intermediate_size"):
            if key in files.text:
                files.text[key] = columns
                return

    return change


def groups_of_32(files: Files):
    for name in files.of(suffix="weight_scale"):
        if files.tensors[name].dim() == 2:
            files.tensors[name] = files.tensors[name][:, ::2].clone()
    for section in files.quantisations:
        _set_group_size(section)


def _set_group_size(section):
    if isinstance(section, dict):
        for key, value in section.items():
            if key == "group_size" and value == 16:
                section[key] = 32
            else:
                _set_group_size(value)


def excluded(files: Files):
    for section in files.quantisations:
        for key in ("ignore", "exclude_modules"):
            if isinstance(section.get(key), list):
                section[key].append(files.block)


def unlisted(files: Files):
    for section in files.quantisations:
        layers = section.get("quantized_layers")
        if isinstance(layers, dict):
            for name in [name for name in layers if name.startswith(files.block)]:
                del layers[name]


def map_that_disagrees(files: Files):
    """The map names each expert: the first as FP8, the others as before."""
    for section in files.quantisations:
        layers = section.get("quantized_layers")
        if isinstance(layers, dict) and files.block in layers:
            entry = layers.pop(files.block)
            for expert in range(files.experts):
                layers[f"{files.block}.{expert}.up_proj"] = entry if expert else {"quant_algo": "FP8"}


# name -> the change. What a block lacks is not changed, so that some kinds leave some checkpoints as they were.
KINDS: dict[str, Callable[[Files], None]] = {
    "nothing": lambda files: None,
    "one expert without input scales": lambda files: files.drop(files.of(1, suffix="input_scale")),
    "one projection without its input scale": lambda files: files.drop(files.of(1, DOWN, "input_scale")),
    "second without its input scale": lambda files: files.drop(files.of(1, SECOND, "input_scale")),
    "no input scales": lambda files: files.drop(files.of(suffix="input_scale")),
    "an expert missing": lambda files: files.drop(files.of(files.experts - 1)),
    "a weight missing": lambda files: files.drop(files.of(0, DOWN, "weight")),
    "a block scale missing": lambda files: files.drop(files.of(1, SECOND, "weight_scale")),
    "a global scale missing": lambda files: files.drop(files.of(1, FIRST, "weight_scale_2")),
    "one expert too many": extra_expert,
    "a tensor nobody knows": unknown_suffix,
    "draft names": draft_names,
    "down in BF16": lambda files: files.change(files.of(1, DOWN, "weight"), _unpacked("bfloat16")),
    "second in BF16": lambda files: files.change(files.of(1, SECOND, "weight"), _unpacked("bfloat16")),
    "down in FP8": lambda files: files.change(files.of(1, DOWN, "weight"), _unpacked("float8_e4m3fn")),
    "block scales as F32": lambda files: files.change(files.of(suffix="weight_scale"), _as("float32")),
    "block scales as bytes": lambda files: files.change(files.of(1, suffix="weight_scale"), _reinterpreted),
    "global scales as BF16": lambda files: files.change(files.of(suffix="weight_scale_2"), _as("bfloat16")),
    "scalars of shape 1": lambda files: files.change(files.of(suffix="weight_scale_2|input_scale"), lambda t: t.reshape(1)),
    "a scalar of shape 2": lambda files: files.change(files.of(1, DOWN, "weight_scale_2"), lambda t: t.reshape(1).repeat(2)),
    "an input scale of shape 2": lambda files: files.change(files.of(1, SECOND, "input_scale"), lambda t: t.reshape(1).repeat(2)),
    "gate and up scales differ": lambda files: files.change(files.of(1, SECOND, "weight_scale_2"), lambda t: t * 2),
    "an input scale of zero": lambda files: files.change(files.of(1, DOWN, "input_scale"), lambda t: t * 0),
    "rows missing": lambda files: files.change(files.of(1, SECOND, "weight"), lambda t: t[:-16].clone()),
    "columns missing": lambda files: files.change(files.of(1, DOWN, "weight"), lambda t: t[:, :-8].clone()),
    "rows of down missing": lambda files: files.change(files.of(1, DOWN, "weight"), lambda t: t[:-16].clone()),
    "intermediate size 48": narrower(48),
    "intermediate size 32": narrower(32),
    "groups of 32": groups_of_32,
    "block excluded": excluded,
    "block not in the map": unlisted,
    "experts disagree in the map": map_that_disagrees,
}


def damaged(checkpoint: Checkpoint, kind: str, layer: int, folder: Path) -> Checkpoint:
    """A copy of the checkpoint in `folder` with the damage in the experts of `layer`. UsageError for an unknown kind."""
    from safetensors.torch import load_file, save_file

    if kind not in KINDS:
        raise unknown("damage", kind, KINDS)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor for file in checkpoint.tensors.shards for name, tensor in load_file(checkpoint.path / file).items()}
    within = re.compile(rf"(.*\blayers\.{layer}\..*\bexperts)\.\d+\.")
    block = next((match[1] for name in tensors if (match := within.match(name))), "")
    files = Files(copy.deepcopy(checkpoint.config), copy.deepcopy(checkpoint.hf_quant), tensors, block, checkpoint.geometry.experts)
    KINDS[kind](files)
    (folder / "config.json").write_text(json.dumps(files.config))
    if files.hf_quant is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(files.hf_quant))
    if (checkpoint.path / "generation_config.json").exists():
        shutil.copy(checkpoint.path / "generation_config.json", folder)
    save_file({name: tensor.contiguous() for name, tensor in files.tensors.items()}, folder / "model.safetensors")
    return open_checkpoint(folder)
