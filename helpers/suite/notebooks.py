"""The notebooks as the runner sees them: names, limits (notebooks/suite.toml), and the checks their cells declare."""

import ast
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from helpers.errors import InputError, UsageError, unknown
from helpers.paths import NOTEBOOKS

DECLARING = {"check", "known_bad", "not_run"}


@dataclass(frozen=True)
class Limits:
    """Seconds: a whole notebook, one cell, the start of the kernel."""

    notebook: float
    cell: float
    start: float


@dataclass(frozen=True)
class Notebook:
    path: Path
    limits: Limits
    last: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def cells(self) -> int:
        return len(nbformat.read(self.path, as_version=4).cells)


def select(asked: Sequence[str], folder: Path = NOTEBOOKS) -> list[Notebook]:
    """The notebooks behind names (02_admit), numbers (02) or paths, in their order; all of the folder for none."""
    bundled = {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
    if not asked:
        if not bundled:
            raise InputError(f"{folder}: there is no notebook here")
        paths = list(bundled.values())
    else:
        paths = [_find(name, bundled) for name in dict.fromkeys(asked)]
    if len({path.stem for path in paths}) < len(paths):
        raise UsageError(f"two of the notebooks have the same name: {', '.join(map(str, paths))}")
    return [_configured(path, _settings(path.parent)) for path in paths]


def _find(asked: str, bundled: dict[str, Path]) -> Path:
    if asked in bundled:
        return bundled[asked]
    numbered = [path for name, path in bundled.items() if name.partition("_")[0] == asked]
    if len(numbered) == 1:
        return numbered[0]
    path = Path(asked)
    if path.suffix != ".ipynb":
        raise unknown("notebook", asked, bundled)
    if not path.is_file():
        raise UsageError(f"{asked}: no such notebook")
    return path.resolve()


def _settings(folder: Path) -> dict:
    """The folder's suite.toml, or this repository's for a notebook that lives elsewhere."""
    path = folder / "suite.toml"
    return tomllib.loads((path if path.is_file() else NOTEBOOKS / "suite.toml").read_text(encoding="utf-8"))


def _configured(path: Path, settings: dict) -> Notebook:
    own = settings.get(path.stem, {})
    return Notebook(path, Limits(**(settings["limits"] | {key: own[key] for key in own if key != "last"})), own.get("last", False))


def declared_checks(source: str) -> list[str]:
    """The literal ids of the checks that a cell would record, in order. A cell that is not plain Python declares none."""
    source = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", None) in DECLARING]
    calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))
    return [call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)]


def ordered(notebooks: Iterable[Notebook]) -> list[Notebook]:
    """Those with the most cells first, so that no long one begins when the others are done; those that read their results last."""
    return sorted(notebooks, key=lambda notebook: (notebook.last, -notebook.cells))
