"""Imports point one way, and a verdict needs none of the heavy packages."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

BASE = {"findings", "errors", "paths"}
# Room -> the rooms it may import from. A room that is not here is a mistake in this table, not a free pass.
MAY_IMPORT = {
    "findings": set(),
    "errors": set(),
    "paths": set(),
    "checkpoint": BASE,
    "deployment": BASE,
    "nvfp4": BASE | {"checkpoint"},
    "kernels": BASE | {"checkpoint", "nvfp4"},
    "stages": BASE | {"checkpoint", "deployment"},
    "sglang": BASE | {"checkpoint", "nvfp4", "deployment", "stages"},
    "vllm": BASE | {"checkpoint", "deployment", "sglang"},
    "view": BASE | {"checkpoint", "deployment", "stages", "sglang", "vllm", "nvfp4", "kernels", "suite"},
    "suite": BASE | {"checkpoint", "deployment", "stages", "sglang", "vllm", "nvfp4", "kernels", "view"},
    "__main__": {"suite"},
    "__init__": set(),
}
# The command line and everything under it answer in a fraction of a second because they never import these.
HEAVY = ("torch", "pandas", "matplotlib", "papermill", "transformers", "numpy", "IPython", "nbformat", "jsonschema")


def modules() -> list[Path]:
    # What lies in a folder inside/ runs under another Python, next to the real SGLang or vLLM, and imports nothing of ours by name.
    return [path for path in sorted((ROOT / "helpers").rglob("*.py")) if "inside" not in path.parts]


def room(path: Path) -> str:
    return path.relative_to(ROOT / "helpers").parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms that a module imports, wherever in it, functions included."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("helpers.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_room_imports_only_from_the_rooms_before_it(path):
    assert imported(path) <= MAY_IMPORT[room(path)] | {room(path)}


def test_the_table_has_no_cycle():
    order = ["findings", "errors", "paths", "checkpoint", "nvfp4", "kernels", "deployment", "stages", "sglang", "vllm"]
    for position, name in enumerate(order):
        assert MAY_IMPORT[name] <= set(order[:position])


def test_the_check_sees_an_import_inside_a_function(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("def late():\n    from helpers import suite\n    import helpers.view.figures\n")
    assert imported(path) == {"suite", "view"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["preflight", "qwen3.5-moe-mixed"],
        ["preflight", "qwen3.5-moe-mixed", "--sglang", "0.5.15", "--runner", "flashinfer_cutedsl", "--json"],
        ["checkpoints"],
        ["releases"],
        ["gpus"],
        ["--help"],
    ],
)
def test_the_command_line_imports_nothing_heavy(arguments):
    program = f"""
import sys
from helpers.suite.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print("\\nloaded:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1].strip() == "loaded:"


def test_the_core_works_where_torch_is_not_installed():
    """As on a Mac laptop that installed no extra: importing torch fails, and the verdict is the same."""
    program = """
import sys
sys.modules["torch"] = None
from helpers.suite.cli import main
sys.exit(main(["preflight", "qwen3.5-moe-mixed"]))
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False).returncode == 0
