"""Where things are in this repository, and which version of a file is there. Nothing here depends on the working directory."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
CHECKPOINTS = DATA / "checkpoints"
RUNS = ROOT / "runs"


def git_blob(path: Path) -> str:
    """The id git gives this file's content, so that a result can be matched with a commit even from an unclean tree."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
