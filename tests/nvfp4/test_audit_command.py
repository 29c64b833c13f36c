"""The audit in a terminal: what it prints, its exit code, and that a record is made."""

import argparse
import json
import shutil

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.errors import InputError, UsageError
from helpers.nvfp4.audit import plan
from helpers.nvfp4.audit.command import add_arguments, main
from helpers.paths import CHECKPOINTS


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(argument) for argument in arguments]))


def test_a_sound_export(capsys, tmp_path):
    record = tmp_path / "audit"
    assert call("qwen3-moe-nvfp4", "--record", record, "--worst", "rms") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("56 NVFP4 matrices")
    assert "worst by root mean square" in printed.out
    assert "(100%)" in printed.err and "s left" in printed.err
    assert record.read_text().count("\n") == 2


def test_a_broken_one_as_json(capsys, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(CHECKPOINTS / "qwen3-moe-nvfp4", folder)
    scales = plan(open_checkpoint(folder))[0].scales
    with open(scales.file, "r+b") as file:
        file.seek(scales.offset)
        file.write(b"\x7f")
    assert call(folder, "--json") == 1
    whole = json.loads(capsys.readouterr().out)
    assert [finding["id"] for finding in whole["findings"]] == ["load.block_scale_not_a_number"]
    assert sum(matrix["nan"] for matrix in whole["matrices"]) == 1
    assert call(folder) == 1
    assert "wrong_output  load.block_scale_not_a_number" in capsys.readouterr().out


def test_wrong_questions():
    with pytest.raises(UsageError, match="must be at least 1"):
        call("qwen3-moe-nvfp4", "--processes", 0)
    with pytest.raises(UsageError, match="did you mean saturated"):
        call("qwen3-moe-nvfp4", "--worst", "saturate")


def test_a_missing_shard_is_not_a_clean_audit(capsys, tmp_path):
    source = CHECKPOINTS / "qwen3-moe-nvfp4"
    shutil.copy(source / "config.json", tmp_path)
    shutil.copy(source / "model.safetensors", tmp_path / "model-00001-of-00002.safetensors")
    names = dict.fromkeys(open_checkpoint(source).tensors, "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": names | {"model.layers.9.x.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert call(tmp_path) == 1
    assert "model-00002-of-00002.safetensors" in capsys.readouterr().out


def test_nothing_to_audit_names_the_file_at_fault(tmp_path):
    shutil.copytree(CHECKPOINTS / "qwen3-moe-nvfp4", tmp_path / "empty")
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.safetensors: the file has 0 bytes.*download"):
        call(tmp_path / "empty")


def test_a_record_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"record cannot be written .*name a file"):
        call("qwen3-moe-nvfp4", "--record", tmp_path / "file" / "x" / "y")
