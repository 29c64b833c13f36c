"""How a real release loads one block of experts: the question *load* and its answer."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.checkpoint import Checkpoint
from helpers.deployment import Deployment
from helpers.errors import InputError, UsageError
from helpers.sglang.client import PreparedReply, Worker, build_request
from helpers.sglang.environments import Environment, environment


@dataclass(frozen=True)
class LoadAnswer(PreparedReply):
    """What one rank of a release made of one layer's block of experts.

    step: where it failed ("prepare", "build", "load" or "process"), "" when it did not. name: the block's runtime name. layer_class,
    method, runner: of the block. share: what the rank holds of it, as in ModelAnswer.experts. before, after: tensor -> [dtype, shape]
    when the block is built, and after process_weights_after_loading(). tensors: checkpoint name -> where it was written, each
    [parameter, expert or None, projection or None]; empty: read, and nothing was done with it. A name that is missing was never read.
    unwritten: parameter -> local experts that some element was not written of. facts: the method's own switches. log: warnings.
    replaced: the GPU steps that were done by a replacement. loaded, processed: safetensors files with the values, where they were
    asked for. peak_mib: of the process, which shares the imports' 1 GB. seconds: after the imports.
    """

    step: str = ""
    layer: int = 0
    name: str | None = None
    layer_class: str | None = None
    method: str | None = None
    runner: str | None = None
    share: dict = field(default_factory=dict)
    before: dict = field(default_factory=dict)
    after: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)
    unwritten: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    log: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    loaded: str | None = None
    processed: str | None = None
    peak_mib: int = 0
    seconds: float = 0.0

    @property
    def source(self) -> str | None:
        """The block's name in the checkpoint, e.g. "model.language_model.layers.0.mlp.experts"; None where nothing was loaded into it."""
        block = f"{self.name}."
        inside = (name for name, places in self.tensors.items() if any(place[0].startswith(block) for place in places))
        return next((name[: name.rindex("experts") + len("experts")] for name in inside if "experts" in name), None)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Tensors that the model read and wrote nowhere."""
        return tuple(name for name, places in self.tensors.items() if not places)


class LoadWorker(Worker):
    """A release's process with the FlashInfer and the CuTe DSL that it pins."""

    def __init__(self, release: str | Environment, question_seconds: float = 300):
        given = release if isinstance(release, Environment) else environment(release)
        super().__init__(given.with_kernels(), question_seconds)

    def load(
        self, folder: str | os.PathLike, deployment: Deployment, layer: int, rank: int = 0, into: str | os.PathLike | None = None
    ) -> LoadAnswer:
        """Loads the experts of `layer` as rank `rank`, and writes their values into the folder `into`."""
        request = build_request("load", folder, deployment, rank) | {
            "folder": str(folder),
            "layer": layer,
            "into": str(into) if into else None,
            "whole": True,
        }
        answer = self._answer_about_layers(request)
        listed = {name: tuple(answer.get(name, ())) for name in ("log", "replaced")}
        return LoadAnswer(release=self.release, note=self.note, layer=layer, **answer | listed)
