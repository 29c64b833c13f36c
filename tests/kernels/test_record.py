"""A record says where it comes from, and when it is no longer of this code."""

import json
from types import SimpleNamespace

import pytest

from helpers.errors import InputError, UsageError
from helpers.kernels import execute, measure, record
from helpers.kernels.execute import Gpu
from helpers.paths import ROOT, git_blob

H200 = Gpu("NVIDIA H200", (9, 0), "580.1", 1)
RESULT = {"question": "run", "kernel": "torch_w4a16", "tokens": 1, "state": "done", "right": True}


def made(**changed):
    return record.make(H200, [RESULT] * 3, [{"clocks.sm": "1980 MHz"}]) | changed


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "folder" / "kernels_h200.json"
    kept = made(parallel=[{"mode": "ep", "right": True}])
    record.write(kept, path)
    assert record.read(path) == json.loads(json.dumps(kept))
    assert path.read_text().count('{"question": "run"') == 3, "a line a result"


def test_an_empty_list_can_be_written(tmp_path):
    record.write(made(results=[]), tmp_path / "r.json")
    assert record.read(tmp_path / "r.json")["results"] == []


def test_a_record_of_this_code_is_fresh_and_of_other_code_is_stale():
    kept = made()
    assert record.changed(kept) == () and "STALE" not in record.label(kept)
    kept["blobs"] = dict(kept["blobs"])
    kept["blobs"]["helpers/kernels/checks.py"] = "0" * 40
    assert record.changed(kept) == ("helpers/kernels/checks.py",)
    assert "STALE: 1 of its sources changed since, e.g. helpers/kernels/checks.py" in record.label(kept)


def test_a_source_that_is_gone_makes_a_record_stale():
    kept = made()
    kept["blobs"] = kept["blobs"] | {"helpers/kernels/gone.py": "1" * 40}
    assert record.changed(kept) == ("helpers/kernels/gone.py",)


def test_the_blobs_are_those_of_git():
    import subprocess

    path = ROOT / "helpers" / "kernels" / "checks.py"
    assert (
        git_blob(path) == subprocess.run(["git", "hash-object", path], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    )


def test_every_source_of_the_kernels_that_run_is_named():
    """A module that a case imports and that is missing from the list would change results without a sign."""
    import ast

    seen, todo = set(), ["helpers.kernels.cases", "helpers.kernels.parallel"]
    while todo:
        name = todo.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if name in seen or not path.is_file():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(("helpers.kernels", "helpers.nvfp4")):
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    needed = {name.replace(".", "/") + ".py" for name in seen}
    # geometry holds the shapes, which every result names; the audit only finds tensors in files.
    spared = {path for path in needed if path.endswith("kernels/geometry.py") or "/audit/" in path}
    assert needed - spared <= record.blobs().keys()


def test_a_record_that_is_too_large_is_refused(tmp_path):
    with pytest.raises(InputError, match="more than the 300,000 of a record"):
        record.write(made(results=[RESULT] * 4000), tmp_path / "large.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": {}}'])
def test_a_file_that_is_no_record_is_named(tmp_path, text):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(InputError, match=r"broken\.json: not a record of kernels"):
        record.read(tmp_path / "broken.json")


def test_the_label_says_gpu_driver_date_and_versions():
    text = record.label(made(date="2026-12-01", versions={"torch": "2.11.0"}))
    assert text.startswith("Recorded on NVIDIA H200, driver 580.1, 2026-12-01: torch 2.11.0")


@pytest.mark.parametrize(
    ("name", "file"), [("NVIDIA H200", "kernels_h200.json"), ("NVIDIA GeForce RTX 5090", "kernels_geforce_rtx_5090.json")]
)
def test_the_file_is_named_after_the_gpu(name, file):
    assert record.path_for(name).name == file


def arguments(tmp_path):
    return SimpleNamespace(out=tmp_path / "made.json", tokens="1", blocks="qwen3-30b-a3b", shared=False, json=False)


def test_without_a_gpu_there_is_nothing_to_record(monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "gpu_here", lambda: None)
    with pytest.raises(UsageError, match=r"nothing to record: .*; `python -m helpers kernels run` checks what a CPU can"):
        record.record_command(arguments(tmp_path))


@pytest.mark.parametrize("right", [True, False])
def test_the_command_writes_the_file_whether_right_or_not(monkeypatch, tmp_path, capsys, right):
    monkeypatch.setattr(execute, "gpu_here", lambda: H200)
    monkeypatch.setattr(execute, "able", lambda: (("torch_w4a16",), ""))
    monkeypatch.setattr(execute, "results", lambda cases: iter([RESULT | {"right": right}]))
    monkeypatch.setattr(measure, "clocks", dict)
    assert record.record_command(arguments(tmp_path)) == (0 if right else 1)
    assert record.read(tmp_path / "made.json")["results"][0]["right"] is right
    assert "1 results" in capsys.readouterr().out


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(execute, "gpu_here", lambda: Gpu("NVIDIA H200", (9, 0), "580.1", 2))
    monkeypatch.setattr(execute, "able", lambda: (("torch_w4a16",), ""))
    monkeypatch.setattr(record, "_parallel", lambda gpu, chosen: [{"mode": "ep", "ranks": gpu.count, "right": True}])


def test_what_gpus_share_is_added_to_the_record_there_is(two_gpus, tmp_path):
    asked = arguments(tmp_path)
    record.write(made(), asked.out)
    asked.shared = True
    assert record.record_command(asked) == 0
    kept = record.read(asked.out)
    assert kept["parallel"] == [{"mode": "ep", "ranks": 2, "right": True}] and len(kept["results"]) == 3
    assert kept["blobs"] == record.blobs() and record.SHARED_SOURCE not in made()["blobs"], "nothing of this record came from it before"


def test_nothing_is_added_to_a_record_of_other_code_or_of_another_gpu(two_gpus, tmp_path):
    asked = arguments(tmp_path)
    asked.shared = True
    record.write(made(blobs={"helpers/kernels/checks.py": "0" * 40}), asked.out)
    with pytest.raises(UsageError, match="is not of this code"):
        record.record_command(asked)
    record.write(made(gpu={"name": "NVIDIA B200", "driver": "1"}), asked.out)
    with pytest.raises(UsageError, match="of the record's kind, NVIDIA B200; here: 2 x NVIDIA H200"):
        record.record_command(asked)


def test_what_this_repository_keeps_can_be_read():
    for kept in record.recorded():
        assert kept["results"] and all(result["state"] in ("done", "error", "crashed", "hung") for result in kept["results"])
        assert record.label(kept)
    for path in record.FOLDER.glob("kernels_*.json"):
        assert path.stat().st_size <= record.MOST_BYTES
