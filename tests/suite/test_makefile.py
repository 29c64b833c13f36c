"""What is typed after `make validate` reaches the notebooks as it was typed. Nothing is built: make only says what it would run."""

import os
import shlex
import subprocess

import pytest

from helpers.paths import ROOT

NAMES = ("CHECKPOINT", "SGLANG", "RUNNER", "A2A", "QUANTIZATION", "TP", "EP", "DP", "GPU", "ENV", "LAUNCH", "EXPECT", "ORACLE", "ORIGINAL")


def would_run(*arguments: str, target: str = "validate", **environment: str) -> list[str]:
    """The words of the command line that the target would start."""
    line = ["make", "-n", "--no-print-directory", "-o", ".venv/.installed", target, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | environment
    process = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return shlex.split(process.stdout)


def parameters(words: list[str]) -> dict[str, str]:
    assert words[1:4] == ["-m", "helpers", "run"]
    return dict(value.split("=", 1) for flag, value in zip(words[4::2], words[5::2], strict=True) if flag == "-p")


def test_without_variables_the_defaults_run():
    assert parameters(would_run()) == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_reaches_the_notebooks(name):
    assert parameters(would_run(f"{name}=x")) == {name.lower(): "x"}


@pytest.mark.parametrize(
    "value", ["a b", "it's", 'a "quoted" word', "$HOME", "`id`", "$(id)", "a; rm -rf b", "x#y", "*", "A=1,B=2", "a\\b"]
)
def test_the_value_is_what_was_typed(value):
    assert parameters(would_run(f"LAUNCH={value}")) == {"launch": value}


def test_the_users_environment_is_not_the_question():
    assert parameters(would_run(GPU="0,1", ENV="/root/.shrc", TP="8")) == {}


def test_a_misspelt_variable_is_an_error():
    process = subprocess.run(
        ["make", "-o", ".venv/.installed", "validate", "CHEKPOINT=x"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2 and "unknown variable CHEKPOINT" in process.stderr


def test_help_is_the_default_and_names_every_target():
    text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("validate", "test", "lab", "bench", "sglang", "vllm", "differential", "lint", "clean"):
        assert f"\n  {target}" in text
