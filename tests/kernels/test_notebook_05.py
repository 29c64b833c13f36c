"""The notebook's cells where nothing can be compiled: cards, and no error."""

import pytest

from helpers.kernels import versions
from helpers.paths import NOTEBOOKS
from helpers.suite import checks


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        (versions.Platform(system="macOS on arm64"), "this is macOS on arm64"),
        (versions.Platform(torch="2.13.0"), "flashinfer-python is not installed"),
    ],
)
def test_where_nothing_compiles_the_notebook_says_so_and_ends_well(platform, says, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setattr(versions, "here", lambda: platform)
    monkeypatch.setattr(checks._notebook, "records", {})
    monkeypatch.delenv(checks.RECORD_FILE, raising=False)
    names = {}
    for cell in nbformat.read(NOTEBOOKS / "05_compile.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, cell.id, "exec"), names)
    states = {record.id: record.state for record in checks._notebook.records.values()}
    assert states == {"here.compiles": "not_run", "matrix.facts": "not_run", "mine.compiles": "not_run"}
    assert says in checks._notebook.records["here.compiles"].why
