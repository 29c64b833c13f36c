"""The suite's own record of a run: result.json (result.schema.json describes it), and the exit code that follows from it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from helpers.paths import git_blob
from helpers.suite.checks import STATES, Check
from helpers.suite.execute import End
from helpers.suite.notebooks import Notebook, declared_checks

SCHEMA = Path(__file__).with_name("result.schema.json")

# State of a notebook -> exit code of the run, the most urgent first: what could not be found out before what was found.
CODES = {"interrupted": 130, "kernel_died": 138, "time_limit": 124, "error": 3, "fail": 1, "pass": 0}
NOT_RUN = 4


def notebook_record(
    notebook: Notebook, defaults: Mapping[str, object], given: Mapping[str, object], end: End, seconds: float, folder: Path
) -> dict:
    """What happened to one notebook, from the files it left in `folder` and the way it ended."""
    made, finish = _read(folder / f"{notebook.name}.jsonl")
    executed = folder / f"{notebook.name}.ipynb"
    source = executed if executed.is_file() else notebook.path
    checks = made + _missing(json.loads(source.read_text(encoding="utf-8")), {check["id"] for check in made}, end)
    state, reason = _state(end, checks, finish)
    counts = Counter(check["state"] for check in checks)
    return {
        "name": notebook.name,
        "state": state,
        "reason": reason,
        "seconds": round(seconds, 2),
        "cell": end.cell,
        "parameters": {**defaults, **given},
        "given": sorted(given),
        "blob": git_blob(notebook.path),
        "counts": {name: counts[name] for name in STATES},
        "checks": checks,
        "verdict": finish["verdict"] if finish else None,
    }


def _read(path: Path) -> tuple[list[dict], dict | None]:
    """The checks recorded, and the line that finish() wrote or None. The last line of a killed kernel may be half a line."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    entries = [json.loads(line) for line in lines[:-1]]
    checks = [entry for entry in entries if "state" in entry]
    return checks, next((entry for entry in entries if "finished" in entry), None)


def _missing(executed: dict, made: set[str], end: End) -> list[dict]:
    """Checks that the cells declare and that were not recorded: error in the cell that did not end, not reached after it, and
    not run where every cell ended: there a condition of the notebook's own left them out.
    """
    missing = []
    for index, cell in enumerate(executed["cells"]):
        if cell["cell_type"] != "code":
            continue
        if end.how == "completed" or end.error == "ChecksFailed":  # finish() stands in the last cell
            state, why = "not_run", "the condition that its cell puts before it did not hold"
        elif index == end.cell or any(output["output_type"] == "error" for output in cell["outputs"]):
            state, why = "error", f"{end.error}: {end.message}"
        else:
            state, why = "not_reached", "the notebook did not come this far"
        missing += [asdict(Check(id, state, why=why)) for id in dict.fromkeys(declared_checks("".join(cell["source"]))) if id not in made]
    return missing


def _state(end: End, checks: list[dict], finish: dict | None) -> tuple[str, str]:
    failed = [check["id"] for check in checks if check["state"] == "fail"]
    if end.how not in ("completed", "raised"):
        return end.how, end.message
    if end.how == "raised" and not (end.error == "ChecksFailed" and failed):
        return "error", f"{end.error}: {end.message}"
    if failed:
        return "fail", f"failed: {', '.join(failed)}"
    if finish is None:
        return "error", "the notebook ended without finish(): its checks were not concluded"
    return "pass", ""


def exit_code(notebooks: Iterable[dict], strict: bool) -> int:
    states = {notebook["state"] for notebook in notebooks}
    worst = next(CODES[state] for state in CODES if state in states)
    unverified = any(notebook["counts"]["not_run"] + notebook["counts"]["not_reached"] for notebook in notebooks)
    return NOT_RUN if strict and not worst and unverified else worst
