"""The same question asked many times, for the figures and explorers: one checkpoint over releases, runners, GPUs."""

from collections.abc import Mapping
from itertools import product

from helpers.checkpoint import Checkpoint, open_checkpoint
from helpers.deployment import RELEASES
from helpers.paths import CHECKPOINTS
from helpers.stages.detect import Detection, detect

VERSIONS = tuple(known.version for known in RELEASES)


def bundled() -> dict[str, Checkpoint]:
    """Every checkpoint of data/checkpoints by name."""
    return {folder.name: open_checkpoint(folder) for folder in sorted(CHECKPOINTS.iterdir()) if (folder / "config.json").is_file()}


def detections(checkpoints: Mapping[str, Checkpoint]) -> dict[tuple[str, str], Detection]:
    """(checkpoint, release) -> what it is called there."""
    return {(name, r.version): detect(checkpoint, r) for (name, checkpoint), r in product(checkpoints.items(), RELEASES)}
