"""Remake a bundled export with ModelOpt itself and compare; ask the script what it does with bad input.

Random initialisation may differ in the last bit between processors, so the committed bytes are compared with a tolerance, and byte
equality is demanded of two makes on this machine.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.paths import CHECKPOINTS

NAME = "qwen3-moe-mixed"
JSON_FILES = ("config.json", "generation_config.json", "hf_quant_config.json")

needs_modelopt = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None, reason="nvidia-modelopt is not installed: pip install 'nvfp4-moe-validation[exports]'"
)


def script(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, CHECKPOINTS / "make.py", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def remade(tmp_path_factory) -> tuple[Path, Path]:
    """The export made twice, by two processes: alone, and after another one."""
    alone, second = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("second")
    runs = [script(NAME, "--out", alone), script("gpt-oss-nvfp4", NAME, "--out", second)]
    for run in runs:
        _, errors = run.communicate()
        assert run.returncode == 0, errors
    return alone / NAME, second / NAME


@needs_modelopt
def test_two_makes_are_equal_byte_for_byte(remade):
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in remade)
    assert first == second


@needs_modelopt
def test_json_files_are_the_committed_ones(remade):
    for name in JSON_FILES:
        assert (remade[0] / name).read_bytes() == (CHECKPOINTS / NAME / name).read_bytes()


@needs_modelopt
def test_tensors_are_the_committed_ones_within_a_processors_rounding(remade):
    made, committed = (load_file(folder / "model.safetensors") for folder in (remade[0], CHECKPOINTS / NAME))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in made.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in committed.items()
    }
    differing = total = 0
    for name, tensor in made.items():
        ours, theirs = (t.contiguous().flatten().view(torch.uint8) for t in (tensor, committed[name]))
        differing += int((ours != theirs).sum())
        total += ours.numel()
        if name.endswith(".input_scale"):
            assert float(tensor) == pytest.approx(float(committed[name]), rel=0.01), name
    assert differing <= 0.01 * total


def dequantised_error(folder: Path, prefix: str, source: torch.Tensor) -> float:
    """Relative error of one NVFP4 weight [out, in] against the BF16 weight it was made from."""
    tensors = load_file(folder / "model.safetensors")
    packed = tensors[f"{prefix}.weight"]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat((magnitudes, -magnitudes))[codes]
    scales = tensors[f"{prefix}.weight_scale"].float() * tensors[f"{prefix}.weight_scale_2"]
    return float((values * scales.repeat_interleave(16, dim=1) - source).norm() / source.norm())


@needs_modelopt
def test_exported_experts_are_the_models_weights(monkeypatch):
    """The bundled NVFP4 experts dequantise to the seeded model, and NVIDIA's mean-square search beats plain maxima on it.

    The search runs here through make.py's stand-in for a GPU kernel, so this also says that the stand-in rounds as NVFP4 does.
    """
    monkeypatch.syspath_prepend(str(CHECKPOINTS))
    import tiny_models

    torch.manual_seed(0)
    model_class, config = tiny_models.qwen3_moe()
    model = model_class(config).to(torch.bfloat16)
    for layer, block in enumerate(model.model.layers):
        gate, up = block.mlp.experts.gate_up_proj.detach().float().chunk(2, dim=1)
        sources = {"gate_proj": gate, "up_proj": up, "down_proj": block.mlp.experts.down_proj.detach().float()}
        for projection, weights in sources.items():
            prefix = f"model.layers.{layer}.mlp.experts.5.{projection}"
            searched = dequantised_error(CHECKPOINTS / "qwen3-moe-mixed", prefix, weights[5])
            maximum = dequantised_error(CHECKPOINTS / "qwen3-moe-nvfp4", prefix, weights[5])
            assert searched < maximum < 0.11, prefix


def test_unknown_name_is_one_line_and_exit_2(tmp_path):
    run = script("qwen3-moe-mixd", "--out", tmp_path / "new")
    output, errors = run.communicate()
    assert (run.returncode, output) == (2, "")
    assert re.fullmatch(r"make\.py: unknown checkpoint 'qwen3-moe-mixd': did you mean qwen3-moe-mixed .*\n", errors)
    assert not (tmp_path / "new").exists()


def test_list_makes_nothing(tmp_path):
    run = script("--list", "--out", tmp_path / "new")
    output, _ = run.communicate()
    assert run.returncode == 0
    assert len(output.splitlines()) == sum((folder / "config.json").exists() for folder in CHECKPOINTS.iterdir())
    assert not (tmp_path / "new").exists()


def test_failed_make_keeps_what_was_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKPOINTS))
    import make

    def fail():
        raise OSError("disk full")

    name = "w4afp8-bare-config"
    kept = make.make(name, tmp_path)
    before = (kept / "config.json").read_bytes()
    monkeypatch.setitem(make.AUTHORED, name, fail)
    with pytest.raises(OSError, match="disk full"):
        make.make(name, tmp_path)
    assert (kept / "config.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]
