"""environment.yml, pyproject.toml and the Makefile ask for the same packages, and pip can give them."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
PIP = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
TORCH = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.M)[1]


def normalised(requirements) -> list[str]:
    return sorted(str(Requirement(text)) for text in requirements)


def test_both_ask_for_the_same_packages():
    extras = [text for group in PROJECT["optional-dependencies"].values() for text in group]
    assert normalised(PIP) == normalised([*PROJECT["dependencies"], *extras, TORCH])


def test_both_ask_for_the_same_python():
    python = next(entry for entry in CONDA["dependencies"] if isinstance(entry, str) and entry.startswith("python"))
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PROJECT["requires-python"])


def test_the_makefile_installs_every_extra():
    extras = re.search(r"^EXTRAS := (\S+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    assert extras.split(",") == list(PROJECT["optional-dependencies"])


def test_sglang_and_vllm_stay_in_environments_of_their_own():
    assert not {Requirement(text).name for text in PIP} & {"sglang", "vllm", "flashinfer-cubin"}


@pytest.mark.timeout(600)
def test_pip_resolves_the_environment(tmp_path):
    """conda itself is not run. --ignore-installed: the packages of this environment must not answer for the index."""
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("\n".join(PIP))
    line = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input", "--retries", "2"]
    process = subprocess.run([*line, "-r", requirements], capture_output=True, text=True, check=False, timeout=580)
    if process.returncode and "connection broken by" in process.stdout + process.stderr and not os.environ.get("CI"):
        pytest.skip("no package index can be reached: environment.yml was NOT resolved")
    assert process.returncode == 0, process.stderr[-2000:]
    found = re.search(r"^Would install (.*)$", process.stdout, re.M)[1].lower().replace("_", "-").split()
    for requirement in map(Requirement, PIP):
        wanted = requirement.name.lower().replace("_", "-")
        if requirement.marker is None or requirement.marker.evaluate():
            versions = [name.removeprefix(f"{wanted}-") for name in found if name.startswith(f"{wanted}-")]
            assert any(re.match(r"\d", version) and version in requirement.specifier for version in versions), requirement
