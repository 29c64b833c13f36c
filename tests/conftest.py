"""What every test needs, and fixtures that more than one room uses."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pytest

from helpers.paths import ROOT

# torch and numpy read it when they are imported. Two test processes whose threads wait for each other at every small
# operation take three times as long as two that use one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PARAMETERS = """\
checkpoint: str = "qwen3.5-moe-mixed"  # bundled name or folder
tp: int = 1  # tensor-parallel size
expect: str = ""  # outcomes, comma separated"""
IMPORTS = "from helpers.suite.checks import check, finish, known_bad, not_run"


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess]:
    """``command("preflight", "x", cwd=…, env={…})``: the command line in a process of its own, output as text."""

    def call(*arguments: object, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NVFP4_MOE_")} | (env or {})
        line = [sys.executable, "-m", "helpers", *map(str, arguments)]
        options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 240} | options
        return subprocess.run(line, env=environment, check=False, **options)

    return call


@pytest.fixture(scope="session")
def write_notebook() -> Callable[[Path, Sequence[str]], Path]:
    """``write_notebook(path, [source, …])``: a notebook with the suite's parameters and imports, and these code cells."""

    def write(path: Path, cells: Sequence[str], parameters: str = PARAMETERS) -> Path:
        notebook = nbformat.v4.new_notebook()
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook.cells = [nbformat.v4.new_markdown_cell(f"# {path.stem}")]
        notebook.cells += [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})] if parameters else []
        notebook.cells += [nbformat.v4.new_code_cell(source) for source in (IMPORTS, *cells)]
        nbformat.write(notebook, path)
        return path

    return write
