"""How a real release loads one block of experts: the question *load* and its answer."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.tensor_table import bits_of
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
    elsewhere: tensors of experts, or shares of them, that another rank holds. unwritten: parameter -> local experts that some element
    was not written of. facts: the method's own switches. log: warnings.
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
    elsewhere: tuple[str, ...] = ()
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
        """Tensors that the model read and wrote nowhere, on any rank."""
        elsewhere = set(self.elsewhere)
        return tuple(name for name, places in self.tensors.items() if not places and name not in elsewhere)

    def lines(self) -> list[str]:
        """The answer in lines to print."""
        block = f"{self.name}: {self.layer_class}, {self.method}, runner {self.runner}" if self.name else f"layer {self.layer}"
        said = [f"sglang {self.release}, {block}"]
        if self.accepted:
            said += [f"  {name:<26} {kind:<16} {tuple(shape)}" for name, (kind, shape) in self.after.items()]
        else:
            said.append(f"fails at step {self.step}: {self.error}: {self.message} ({self.file}:{self.line} {self.function})")
        written = sum(bool(places) for places in self.tensors.values())
        said.append(f"tensors: {written} written, {len(self.elsewhere)} of other ranks, {len(self.dropped)} dropped")
        said += [f"  dropped: {name}" for name in self.dropped[:10]]
        said += [f"without a value: {name}, experts {', '.join(map(str, experts))}" for name, experts in self.unwritten.items()]
        said += list(self.log)
        if self.replaced:
            said.append(f"done without a GPU: {', '.join(self.replaced)}")
        return [*said, f"{self.seconds:.1f} s, {self.peak_mib} MiB"]


class LoadWorker(Worker):
    """A release's process with the FlashInfer and the CuTe DSL that it pins."""

    def __init__(self, release: str | Environment, question_seconds: float = 300):
        given = release if isinstance(release, Environment) else environment(release)
        super().__init__(given.with_kernels(), question_seconds)

    def load(
        self,
        checkpoint: Checkpoint,
        deployment: Deployment,
        layer: int,
        rank: int = 0,
        into: str | os.PathLike | None = None,
        whole: bool | None = None,
    ) -> LoadAnswer:
        """Loads the experts of `layer` as rank `rank`, and writes their values into the folder `into`.

        whole: all other tensors of the checkpoint are handed to the model too, as shapes; default: up to MOST_NAMES of them.
        UsageError for a checkpoint without tensors or a layer without experts, InputError where memory is too small for the layer.
        """
        _can_be_loaded(checkpoint, layer)
        request = build_request("load", checkpoint.path, deployment, rank) | {
            "folder": str(checkpoint.path),
            "layer": layer,
            "into": str(into) if into else None,
            "whole": len(checkpoint.tensors) <= MOST_NAMES if whole is None else whole,
        }
        answer = self._answer_about_layers(request)
        if answer.get("error") == "FlashInferFails":
            raise InputError(f"the FlashInfer of sglang {self.release} does not import on this machine: {answer['message']}")
        listed = {name: tuple(answer.get(name, ())) for name in ("log", "replaced", "elsewhere")}
        return LoadAnswer(release=self.release, note=self.note, layer=layer, **answer | listed)


# A model's load_weights() looks every name up among its experts' names: 50 s for the 400,000 tensors of 60 layers with 512 experts.
MOST_NAMES = 20_000
COPIES = 4  # of the layer's bytes that are alive at once: read, loaded, coverage, processed


# What reading the headers finds of a file that is missing or cut short.
UNREADABLE = ("load.file_refused", "load.shard_missing")


def layer_bytes(checkpoint: Checkpoint, layer: int) -> int:
    """The bytes of the layer's tensors in the checkpoint's files."""
    here = re.compile(rf"(^|\.)layers\.{layer}\.")
    return sum(bits_of(dtype, shape) // 8 for name, dtype, shape in checkpoint.tensors.rows() if here.search(name))


def _can_be_loaded(checkpoint: Checkpoint, layer: int):
    if checkpoint.tensors is None:
        raise UsageError(f"{checkpoint.name} has configurations only: loading needs its tensors (*.safetensors)")
    unreadable = next((finding for finding in checkpoint.reading if finding.id in UNREADABLE), None)
    if unreadable is not None:
        raise InputError(f"{checkpoint.name} cannot be loaded: {unreadable.observed}")
    geometry = checkpoint.geometry
    if geometry is None or layer not in geometry.moe_layers:
        there = _ranges(geometry.moe_layers) if geometry else "none that config.json says the dimensions of"
        raise UsageError(f"{checkpoint.name} has no experts in layer {layer}; layers with experts: {there}")
    needed, free = COPIES * layer_bytes(checkpoint, layer), available_memory()
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB to be loaded and this machine has {free / 2**30:.1f} GiB free"
        raise InputError(f"layer {layer} of {checkpoint.name} needs {sizes}")


def _ranges(numbers: tuple[int, ...]) -> str:
    """0-3, 5 of (0, 1, 2, 3, 5)."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def available_memory() -> int:
    """Bytes that a new process can take: /proc/meminfo MemAvailable, or all pages where there is none."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10
