"""Every notebook under plain papermill, as a user starts it: with its defaults, with other questions, and asked wrongly."""

import json
import shutil
from pathlib import Path

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from helpers.paths import CHECKPOINTS, NOTEBOOKS
from helpers.suite.checks import RECORD_FILE

REFUSED = {"sglang": "0.5.15", "runner": "flashinfer_cutedsl"}
LAUNCH = "python -m sglang.launch_server --model-path x --moe-runner-backend flashinfer_cutedsl --tp 8 --enable-metrics"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Execute a notebook from a directory that has nothing to do with the repository; returns its records, checks by id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RECORD_FILE, str(tmp_path / "checks.jsonl"))
    # JUPYTER_* and IPython's own start-up files of whoever runs the tests must not matter.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def execute(name: str, parameters: dict) -> dict[str, dict]:
        source, executed = NOTEBOOKS / f"{name}.ipynb", tmp_path / "executed.ipynb"
        papermill.execute_notebook(source, executed, parameters, kernel_name="python3", progress_bar=False, log_output=False)
        return records(tmp_path)

    return execute


def records(folder: Path) -> dict[str, dict]:
    lines = (json.loads(line) for line in (folder / "checks.jsonl").read_text(encoding="utf-8").splitlines())
    return {record["id"]: record for record in lines if "id" in record}


def outputs(folder: Path) -> list[dict]:
    cells = json.loads((folder / "executed.ipynb").read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_the_defaults_pass_without_a_warning(run, tmp_path, name):
    checks = run(name, {})
    assert checks
    assert {check["state"] for check in checks.values()} <= {"pass", "not_run"}
    assert [output for output in outputs(tmp_path) if output["output_type"] == "error"] == []
    assert "Warning" not in "".join(text for output in outputs(tmp_path) if output.get("name") == "stderr" for text in output["text"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("02_admit", REFUSED | {"expect": "refused"}),
        ("03_route", REFUSED | {"expect": "refused"}),
        ("06_run", REFUSED | {"expect": "refused"}),
        ("06_run", {"checkpoint": "qwen3.5-397b-v2-config"}),
        ("07_verdict", REFUSED | {"expect": "refused"}),
        ("02_admit", {"checkpoint": "qwen3-moe-nvfp4", "runner": "flashinfer_cutedsl"}),
        ("03_route", {"checkpoint": "qwen3.5-397b-v2-config", "sglang": "0.5.16", "runner": "flashinfer_cutedsl"}),
        ("07_verdict", {"checkpoint": "qwen3.5-moe-w4a16-mixed", "runner": "triton", "expect": "refused"}),
        ("07_verdict", {"checkpoint": "qwen3.5-397b-v2-config", "launch": LAUNCH}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))[:60],
)
def test_other_questions(run, name, parameters):
    checks = run(name, parameters)
    assert {check["state"] for check in checks.values()} <= {"pass", "not_run"}
    assert checks["expect"]["state"] == "pass"


@pytest.mark.parametrize("name", ["01_detect", "03_route"])
def test_nemotron_and_a_folder_of_configurations_only(run, tmp_path, name):
    folder = tmp_path / "config only"
    folder.mkdir()
    for file in ("config.json", "hf_quant_config.json"):
        shutil.copy(CHECKPOINTS / "nemotron-h-nvfp4-repaired" / file, folder)
    checks = run(name, {"checkpoint": str(folder)})
    assert {check["state"] for check in checks.values()} <= {"pass", "not_run"}


@pytest.mark.parametrize(
    ("name", "parameters", "state"),
    [
        ("02_admit", REFUSED, "refused"),
        ("07_verdict", {"expect": "refused"}, "serves"),
    ],
)
def test_an_outcome_that_was_not_expected_fails(run, tmp_path, name, parameters, state):
    with pytest.raises(PapermillExecutionError) as failed:
        run(name, parameters)
    assert failed.value.ename == "ChecksFailed"
    assert "expect" in failed.value.evalue
    expect = records(tmp_path)["expect"]
    assert (expect["state"], expect["observed"]) == ("fail", state)


@pytest.mark.parametrize(
    ("parameters", "kind", "hint"),
    [
        ({"runner": "flashinfer_cutedls"}, "UsageError", "did you mean flashinfer_cutedsl"),
        ({"checkpoint": "torn"}, "InputError", "config.json"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line(run, tmp_path, parameters, kind, hint):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text('{"architectures": [')
    with pytest.raises(PapermillExecutionError) as failed:
        run("07_verdict", parameters)
    assert failed.value.ename == kind
    assert hint in failed.value.evalue
    error = next(output for output in outputs(tmp_path) if output["output_type"] == "error")
    assert len(error["traceback"]) == 1
