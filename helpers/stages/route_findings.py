"""Findings that follow from a routing alone, and the names to assume for a model class the table does not have."""

from collections.abc import Callable, Iterator

from helpers.checkpoint import Checkpoint
from helpers.findings import Finding
from helpers.stages.detect import Detection
from helpers.stages.modules import Module
from helpers.stages.names import Unloadable
from helpers.stages.quant_config import Spec


def findings(checkpoint: Checkpoint, detection: Detection, routing, error: Unloadable | None, candidates: Callable) -> tuple[Finding, ...]:
    """Everything about the routing that holds on any deployment."""
    if error is None:
        return ()
    return (
        Finding(
            id="route.config_unloadable",
            stage="route",
            severity="fails_to_load",
            read=detection.copy,
            observed=f"{error.error}: {error.message}",
            expected="a quantisation config this release can build",
            why="SGLang raises while it builds the model's layers",
            source=f"sglang {routing.release} {error.source}",
            remedy="export again with a supported recipe, or use a newer SGLang",
            releases=(routing.release.version,),
        ),
    )


def assumed_modules(checkpoint: Checkpoint, spec: Spec | None) -> Iterator[Module]:
    """The checkpoint's own map keys as module names; expert blocks as one module."""
    seen = set()
    for key in spec.layers.layers if spec is not None and spec.layers is not None else ():
        head, found, _ = key.partition(".experts.")
        prefix = head + ".experts" if found else key
        if prefix not in seen:
            seen.add(prefix)
            yield Module(prefix, "experts" if prefix.endswith(".experts") else "linear", None, (prefix,))
