"""What every notebook keeps to, read from its file; and that it runs from where people stand, and can fail."""

import ast
import inspect
import itertools
import re
import statistics
import tomllib
from pathlib import Path

import nbformat
import papermill
import pytest

from helpers.deployment import deployment
from helpers.paths import NOTEBOOKS
from helpers.suite.notebooks import declared_checks

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
# One plain line a parameter: what papermill can read of it (no union, no second =, no # inside the value) and a reader too.
PARAMETER = re.compile(r"""(?P<name>[a-z_][a-z0-9_]*): (?P<kind>str|int) = (?P<default>"[^"#=]*"|\d+)  # (?P<help>\S.*)""")
ABSOLUTE = re.compile(r"""(?:^|[\s"'(=])(/(?:home|Users|root|work|tmp|mnt|opt|usr|var|data)/\S*|[A-Z]:\\\S*)""", re.M)
LATEX = re.compile(r"\$\$|(?<![\\\w$])\$[^\s$`][^$`\n]*\$(?!\w)")


def test_there_are_notebooks():
    numbers = [path.stem[:2] for path in PATHS]
    assert numbers == sorted(set(numbers)) and {"00", "01", "02", "03", "07"} <= set(numbers)


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def notebook(path) -> nbformat.NotebookNode:
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return found


@pytest.fixture
def code(notebook) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(cells) -> list[nbformat.NotebookNode]:
    return [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]


def parameters(path: Path) -> dict[str, tuple[str, object, str]]:
    """Name -> (type, default, help), read from the lines of the parameters cell."""
    cell = tagged(nbformat.read(path, as_version=4).cells)[0]
    lines = [PARAMETER.fullmatch(line) for line in cell.source.splitlines() if line.strip()]
    return {line["name"]: (line["kind"], ast.literal_eval(line["default"]), line["help"]) for line in lines}


def test_parameters_are_one_plain_documented_line_each(code):
    (cell,) = tagged(code)
    for line in cell.source.splitlines():
        assert not line.strip() or PARAMETER.fullmatch(line), line


def test_papermill_reads_the_parameters_that_python_reads(path):
    found = papermill.inspect_notebook(str(path))
    ours = parameters(path)
    assert list(found) == list(ours)
    for name, (kind, default, text) in ours.items():
        assert found[name]["inferred_type_name"] == kind
        assert ast.literal_eval(found[name]["default"]) == default and isinstance(default, {"str": str, "int": int}[kind])
        assert found[name]["help"] == text


def names(tree: ast.AST, hidden: frozenset[str] = frozenset()) -> list[ast.Name]:
    """The names of a cell that mean the notebook's own: a comprehension's variables are nobody else's."""
    if isinstance(tree, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets = [node for loop in tree.generators for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        hidden |= {target.id for target in targets}
    if isinstance(tree, ast.Name):
        return [] if tree.id in hidden else [tree]
    return [name for child in ast.iter_child_nodes(tree) for name in names(child, hidden)]


def test_parameters_are_read_and_never_assigned_again(path, code):
    position = code.index(tagged(code)[0])
    found = [name for cell in code[position + 1 :] for name in names(ast.parse(cell.source))]
    for name in parameters(path):
        assert any(node.id == name and isinstance(node.ctx, ast.Load) for node in found), f"{name} is never read"
        assert not any(node.id == name and not isinstance(node.ctx, ast.Load) for node in found), f"{name} is assigned again"


def test_the_same_parameter_is_the_same_everywhere():
    seen = {}
    for path in PATHS:
        for name, value in parameters(path).items():
            assert seen.setdefault(name, value) == value, f"{name} in {path.name}"
    flags = inspect.signature(deployment).parameters
    for name, (_, default, _) in seen.items():
        if name in flags:
            assert default == flags[name].default, name


def test_cells_come_in_the_agreed_order(notebook, code):
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[:2] == ["markdown", "code"] and kinds[-1] == "markdown"
    assert code.index(tagged(code)[0]) == 1
    calls = [
        node.func.id for node in ast.walk(ast.parse(code[-1].source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "finish" in calls
    assert not any(re.search(r"\bfinish\(", cell.source) for cell in code[:-1])


def test_the_bootstrap_is_short_and_the_same_everywhere(code):
    first = nbformat.read(PATHS[0], as_version=4).cells[1].source
    assert code[0].source == first
    assert len([line for line in first.splitlines() if line.strip()]) <= 6


def test_code_cells_are_short(code):
    lengths = [len([line for line in cell.source.splitlines() if line.strip()]) for cell in code]
    assert max(lengths) <= 20 and statistics.median(lengths) <= 8


def test_one_title_and_no_level_skipped(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    levels = [len(marks) for marks in re.findall(r"^(#+) ", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_nothing_executed_is_kept(notebook, code):
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec == {"name": "python3", "display_name": "Python 3", "language": "python"}


def test_no_absolute_path_and_nothing_the_offline_report_cannot_show(notebook):
    for cell in notebook.cells:
        assert not ABSOLUTE.search(cell.source), ABSOLUTE.search(cell.source)[0]
        if cell.cell_type == "markdown":
            assert "![" not in cell.source and "<img" not in cell.source
            assert not LATEX.search(re.sub(r"`[^`]*`", "", cell.source)), "the report has no MathJax"


def test_no_exception_can_vanish(notebook, code):
    for cell in notebook.cells:
        assert not {"skip-execution", "raises-exception"} & set(cell.metadata.get("tags", []))
    for cell in code:
        assert not cell.source.lstrip().startswith("%%") and not re.search(r"^\s*[!%]", cell.source, re.M)
        tree = ast.parse(cell.source)
        called = {getattr(node.func, "id", getattr(node.func, "attr", "")) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"Output", "interact", "interactive", "interactive_output", "Thread", "create_task", "exit", "quit"}
        # Inside a function a check may run in a callback, where nobody hears it fail.
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
        inside = [node for function in functions for node in ast.walk(function)]
        assert not any(isinstance(node, ast.Assert) for node in inside)
        assert not any(isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("check", "known_bad", "finish") for node in inside)


def test_every_check_has_its_own_id(code):
    ids = [id for cell in code for id in declared_checks(cell.source)]
    assert ids and len(ids) == len(set(ids))


def test_the_settings_name_notebooks_that_exist():
    settings = tomllib.loads((NOTEBOOKS / "suite.toml").read_text())
    assert settings.keys() - {"limits"} <= {path.stem for path in PATHS}
    assert settings["07_verdict"]["last"] is True
