"""Where things are in this repository. Nothing here depends on the working directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
CHECKPOINTS = DATA / "checkpoints"
RUNS = ROOT / "runs"
