"""One expert block as the checkpoint stores it, and the part of it that a rank holds. A matrix is read when it is asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from helpers.checkpoint import Checkpoint, split_expert
from helpers.errors import InputError
from helpers.nvfp4.audit.plan import Job, Part, plan
from helpers.nvfp4.audit.scan import Reader
from helpers.nvfp4.codec import Nvfp4

PROJECTIONS = ("gate", "up", "down")


@dataclass(frozen=True)
class Share:
    """What one rank holds. first, experts: its experts' first number and how many; part: which of ``parts`` of each expert's rows."""

    first: int
    experts: int
    part: int = 0
    parts: int = 1

    @property
    def local(self) -> slice:
        return slice(self.first, self.first + self.experts)

    def cut(self, whole: Nvfp4, projection: str, each: int | None = None) -> Nvfp4:
        """The rank's part of a matrix [rows, K]: rows of gate and up, columns of down. each: how many rows a rank takes, where that
        is not the even share; the last ranks may then hold less, or nothing."""
        size = whole.shape[1] if projection == "down" else whole.shape[0]
        each = each or size // self.parts
        start, stop = (min(each * part, size) for part in (self.part, self.part + 1))
        if projection == "down":
            codes, scales = whole.codes[:, start // 2 : stop // 2], whole.scales[:, start // 16 : stop // 16]
        else:
            codes, scales = whole.codes[start:stop], whole.scales[start:stop]
        return Nvfp4(codes, scales, whole.global_scale, whole.recipe)


class Stored:
    """The NVFP4 experts under one name, one matrix an expert and projection.

    InputError, naming checkpoint and block, when there are none there or one is missing.
    """

    def __init__(self, checkpoint: Checkpoint, block: str):
        jobs = [job for job in plan(checkpoint) if job.module.startswith(f"{block}.") and job.projection in PROJECTIONS]
        self.jobs: dict[tuple[int, str], Job] = {(job.expert, job.projection): job for job in jobs if job.expert is not None}
        if not self.jobs:
            raise InputError(f"{checkpoint.name}: no NVFP4 experts under {block}, one matrix an expert and projection")
        self.experts = 1 + max(expert for expert, _ in self.jobs)
        self.projections = tuple(name for name in PROJECTIONS if any(name == held for _, held in self.jobs))
        missing = [f"{e}.{name}" for e in range(self.experts) for name in self.projections if (e, name) not in self.jobs]
        if missing or "down" not in self.projections:
            raise InputError(f"{checkpoint.name}: {block} lacks {', '.join(missing[:3]) or 'its down projections'}; export it again")
        self._reader = Reader()

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, *error) -> None:
        self._reader.__exit__(*error)

    @property
    def gated(self) -> bool:
        return "gate" in self.projections

    def matrix(self, expert: int, projection: str) -> Nvfp4:
        job = self.jobs[expert, projection]
        codes = self._numbers(job.codes, torch.uint8).view(job.codes.shape)
        scales = self._numbers(job.scales, torch.float8_e4m3fn).view(job.scales.shape)
        return Nvfp4(codes, scales, self.globals[projection][expert])

    @cached_property
    def globals(self) -> dict[str, torch.Tensor]:
        """projection -> global scales float32 [E]."""
        return {name: torch.cat([self._scalar(self.jobs[e, name].global_scale) for e in range(self.experts)]) for name in self.projections}

    @cached_property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Input scales float32 [E] of the first and the second product, NaN where the checkpoint has none; of gate and up the larger."""
        first = [self._inputs(name) for name in self.projections if name != "down"]
        return torch.stack(first).amax(0), self._inputs("down")

    @property
    def lacks_inputs(self) -> bool:
        return any(bool(scale.isnan().any()) for scale in self.inputs)

    @property
    def filled_inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``inputs`` with 1 where there is none, as SGLang fills them from 0.5.17 on; before, that memory is never written."""
        first, second = (scale.nan_to_num(nan=1.0) for scale in self.inputs)
        return first, second

    def _inputs(self, projection: str) -> torch.Tensor:
        parts = (self.jobs[expert, projection].input_scale for expert in range(self.experts))
        return torch.cat([torch.tensor([torch.nan]) if part is None else self._scalar(part) for part in parts])

    def _scalar(self, part: Part) -> torch.Tensor:
        return self._numbers(part, torch.float32)[:1]

    def _numbers(self, part: Part, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self._reader.all(part)).view(dtype)


def blocks(names: Iterable[str]) -> tuple[str, ...]:
    """The expert blocks that tensors' names belong to, in order: what stands before an expert's number."""
    found = (split_expert(name) for name in names)
    return tuple(dict.fromkeys(split[0] for split in found if split))
