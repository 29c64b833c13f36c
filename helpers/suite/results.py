"""What earlier notebooks found, for the notebook that draws the conclusion."""

import json
import os
from pathlib import Path

from helpers.errors import InputError
from helpers.paths import RUNS

RUN_FOLDER = "NVFP4_MOE_RUN"


def read(results: str = "") -> dict | None:
    """result.json of a run: of the folder (or file) `results`; for "" of the run in progress, else of runs/latest.

    None when nothing was named and nothing has run yet. InputError when what was named is not a result.
    """
    folder = Path(results or os.environ.get(RUN_FOLDER) or RUNS / "latest")
    path = folder / "result.json" if folder.is_dir() else folder
    if not results and not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "notebooks" not in found:
            raise ValueError("it has no list of notebooks")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the result.json of a run: {error}") from None
    return found
