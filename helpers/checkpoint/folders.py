"""Folders for checkpoints, also for those that are only two JSON files in memory."""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.checkpoint.checkpoint import Checkpoint


class Folders:
    """A folder for each checkpoint that another program can be pointed at: its own, or its configurations written to a scratch place."""

    def __init__(self, scratch: Path):
        self.scratch = scratch
        self._known: dict[int, tuple[Checkpoint, Path]] = {}
        self._lock = threading.Lock()

    def __call__(self, checkpoint: Checkpoint) -> Path:
        with self._lock:  # several releases may be asked in threads, about the same checkpoints
            known = self._known.get(id(checkpoint))
            if known is None:
                known = self._known[id(checkpoint)] = (checkpoint, self._folder(checkpoint))
            return known[1]

    def _folder(self, checkpoint: Checkpoint) -> Path:
        if checkpoint.path is not None and (checkpoint.path / "config.json").is_file():
            return checkpoint.path
        config, quant = json.dumps(checkpoint.config), json.dumps(checkpoint.hf_quant)
        folder = self.scratch / hashlib.sha256((config + quant).encode()).hexdigest()[:16]
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(config)
            if checkpoint.hf_quant is not None:
                (folder / "hf_quant_config.json").write_text(quant)
        return folder


@contextmanager
def folders() -> Iterator[Folders]:
    """A scratch place that is removed at the end; what a process left that was killed is removed too."""
    for left in Path(tempfile.gettempdir()).glob("nvfp4-moe-*-*"):
        owner = left.name.split("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"nvfp4-moe-{os.getpid()}-") as scratch:
        yield Folders(Path(scratch))
