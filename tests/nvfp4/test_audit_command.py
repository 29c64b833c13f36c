"""The audit in a terminal: what it prints, its exit code, and that a record is made."""

import argparse
import json
import shutil

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.errors import UsageError
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
