"""The notebooks run from where people stand, agree with each other, and can fail."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import nbformat
import pytest

from helpers.findings import STAGES
from helpers.paths import NOTEBOOKS, ROOT
from helpers.suite.record import SCHEMA

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
BOOTSTRAP = nbformat.read(PATHS[0], as_version=4).cells[1].source if PATHS else ""


def run(command, folder: Path, *arguments: str) -> tuple[int, dict[str, dict]]:
    """Exit code, and the record of each notebook by name."""
    process = command("run", *arguments, "--out", folder)
    assert (folder / "result.json").is_file(), process.stderr
    records = json.loads((folder / "result.json").read_text())["notebooks"]
    return process.returncode, {notebook["name"]: notebook for notebook in records}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, command) -> Path:
    """The folder of `make validate`: every notebook with its defaults. Kernels stand in notebooks/, as in JupyterLab."""
    folder = tmp_path_factory.mktemp("run") / "out"
    code, records = run(command, folder)
    assert code == 0, [f"{name}: {record['reason']}" for name, record in records.items() if record["state"] != "pass"]
    return folder


def test_every_notebook_passes_with_its_defaults(finished):
    result = json.loads((finished / "result.json").read_text())
    jsonschema.validate(result, json.loads(SCHEMA.read_text()))
    assert [notebook["name"] for notebook in result["notebooks"]] == [path.stem for path in PATHS]
    for notebook in result["notebooks"]:
        assert notebook["state"] == "pass" and not notebook["counts"]["not_reached"], notebook["name"]
    assert result["verdict"]["outcome"] == "serves"
    assert result["verdict"]["stages"] == dict(zip(STAGES, ["passed"] * 3 + ["not_examined"] * 2, strict=True))


def test_the_report_opens_offline_and_every_picture_has_words(finished):
    class Report(HTMLParser):
        def handle_starttag(self, tag, attributes):
            values = dict(attributes)
            assert tag not in ("script", "link", "iframe", "object", "embed")
            assert not values.get("src", "data:").startswith(("http", "//", "file"))
            if tag == "img":
                pictures.append(values)
            if tag in ("h1", "h2", "h3", "h4", "h5"):
                headings.append(tag)

    pictures, headings = [], []
    source = (finished / "index.html").read_text()
    Report().feed(source)
    assert pictures and all(len(picture.get("alt", "")) > 20 for picture in pictures)
    assert headings.count("h1") == 1
    assert not re.search(r"@import|url\(\s*['\"]?(?:http|//)", source)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_plain_papermill_from_any_folder(path, tmp_path):
    """Beside the caller lies a package that is called helpers too, as in CUTLASS's examples."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("raise ImportError('the wrong one')")
    line = [sys.executable, "-m", "papermill", path, tmp_path / "out.ipynb", "--no-progress-bar", "--log-level", "ERROR"]
    process = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert process.returncode == 0, process.stderr[-2000:]
    assert {entry.name for entry in tmp_path.iterdir()} <= {"helpers", "out.ipynb"}


def bootstrap(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    """The bootstrap cell, then where the suite was found."""
    program = f"{BOOTSTRAP}\nimport helpers.suite\nprint(helpers.suite.__file__)"
    line = [sys.executable, *options, "-c", program]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_the_bootstrap_finds_the_suite_without_an_installation():
    """-S: no site-packages, so nothing is installed; only the way up from the working directory is left."""
    found = bootstrap(NOTEBOOKS, "-S")
    assert found.stdout.strip() == str(ROOT / "helpers" / "suite" / "__init__.py"), found.stderr


def test_a_foreign_helpers_is_named_in_one_line(tmp_path):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").touch()
    found = bootstrap(tmp_path, PYTHONPATH=str(tmp_path))
    last = found.stderr.strip().splitlines()[-1]
    assert found.returncode and str(tmp_path / "helpers") in last and ".venv" in last


def test_a_wrong_expect_fails_each_notebook_whose_stage_can_know(command, tmp_path):
    """The default serves. That it would be refused is contradicted where the last stage that refuses has passed."""
    code, records = run(command, tmp_path / "out", "02", "03", "07", "-p", "expect=refused")
    assert code == 1
    for record in records.values():
        assert [check["id"] for check in record["checks"] if check["state"] == "fail"] == ["expect"], record["name"]


def test_the_first_stage_fails_on_what_it_knows(command, tmp_path):
    """A quantisation method that no release knows is refused before any argument is looked at."""
    config = json.loads((ROOT / "data" / "checkpoints" / "qwen3.5-moe-mixed" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "no_such_method"}
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps(config))
    code, records = run(command, tmp_path / "out", "01", "-p", f"checkpoint={tmp_path / 'broken'}")
    assert code == 1 and records["01_detect"]["state"] == "fail"
    code, records = run(command, tmp_path / "expected", "01", "-p", f"checkpoint={tmp_path / 'broken'}", "-p", "expect=refused")
    assert code == 0, records["01_detect"]["reason"]


@pytest.mark.parametrize(("release", "code"), [("0.5.15", 1), ("0.5.16", 0)])
def test_the_starting_case_through_plain_papermill(tmp_path, release, code):
    """SGLang PR 30443, as a user types it."""
    line = [sys.executable, "-m", "papermill", NOTEBOOKS / "02_admit.ipynb", tmp_path / "out.ipynb", "--no-progress-bar"]
    line += ["-p", "runner", "flashinfer_cutedsl", "-p", "sglang", release]
    assert subprocess.run(line, cwd=tmp_path, capture_output=True, check=False, timeout=240).returncode == code
    if code:
        assert (
            subprocess.run([*line, "-p", "expect", "refused"], cwd=tmp_path, capture_output=True, check=False, timeout=240).returncode == 0
        )
