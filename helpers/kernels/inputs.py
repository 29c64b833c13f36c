"""What a kernel is given: the routed experts of one layer, and which tokens go to which of them.

Experts are synthetic (Gaussian weights of a named model's shape) or read from a checkpoint, and then only those that some token
reaches. Weights are ModelOpt's NVFP4 throughout; a runner brings them into its kernel's layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from helpers.errors import InputError, UsageError, unknown
from helpers.nvfp4.codec import Nvfp4, encode
from helpers.nvfp4.layouts import column_slice, join_w13, row_slice
from helpers.nvfp4.moe import Expert, collapse_globals

if TYPE_CHECKING:
    from helpers.kernels.geometry import Block

ROUTINGS = ("random", "skewed", "concentrated")
MOST_TOKENS = 8192
# Largest magnitudes that the static input scales of synthetic experts allow for: of Gaussian tokens, and of what SwiGLU makes of them.
FIRST_AMAX, SECOND_AMAX = 6.0, 24.0
FULL_SCALE = 2688.0


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts of a layer, stacked: gate (None without one) and up [E, I, H], down [E, H, I], a global scale an expert.

    first_input, second_input: float32 [E], the static scale of each product's activations as checkpoints store it (amax/2688).
    numbers: what the model calls these experts; routing names them by position here.
    """

    block: Block
    gate: Nvfp4 | None
    up: Nvfp4
    down: Nvfp4
    first_input: torch.Tensor
    second_input: torch.Tensor
    numbers: tuple[int, ...]

    def __getitem__(self, expert: int) -> Expert:
        return Expert(None if self.gate is None else self.gate[expert], self.up[expert], self.down[expert])

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.gate, self.up, self.down) if part is not None)

    def w13(self, order: str) -> Nvfp4:
        """Gate and up rows in one matrix [E, 2I, H] in the named order; up alone where there is no gate."""
        if self.gate is None:
            return self.up
        codes = join_w13(self.gate.codes, self.up.codes, order)
        scales = join_w13(self.gate.scales.view(torch.uint8), self.up.scales.view(torch.uint8), order)
        return replace(self.up, codes=codes, scales=scales.view(torch.float8_e4m3fn))


@dataclass(frozen=True, eq=False)
class Routing:
    """ids int32 [T, k], each row distinct; weights float32 [T, k], each row adding up to one."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def hit(self) -> int:
        """Experts that have at least one token."""
        return int(self.ids.unique().numel())


def synthetic(block: Block, device: str = "cpu", seed: int = 0) -> Experts:
    """Gaussian experts, encoded one at a time, so that hundreds of them fit beside their codes."""
    generator = torch.Generator(device).manual_seed(seed)
    gated = block.gated

    def one(rows: int, cols: int) -> Nvfp4:
        return encode((torch.randn(rows, cols, device=device, generator=generator) * cols**-0.5).bfloat16())

    first, second = [], []
    for _ in range(block.experts):
        first.append(one((2 if gated else 1) * block.intermediate, block.hidden))
        second.append(one(block.hidden, block.intermediate))
    w1 = stack(first)
    gate, up = (_rows(w1, slice(0, block.intermediate)), _rows(w1, slice(block.intermediate, None))) if gated else (None, w1)
    scales = (torch.full((block.experts,), amax / FULL_SCALE, device=device) for amax in (FIRST_AMAX, SECOND_AMAX))
    return Experts(block, gate, up, stack(second), *scales, tuple(range(block.experts)))


def stack(parts: list[Nvfp4]) -> Nvfp4:
    """[E, rows, K] of E matrices of one shape."""
    scales = torch.stack([part.scales.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return Nvfp4(torch.stack([p.codes for p in parts]), scales, torch.stack([p.global_scale for p in parts]), parts[0].recipe)


def _rows(encoded: Nvfp4, rows: slice) -> Nvfp4:
    scales = encoded.scales.view(torch.uint8)[:, rows].contiguous().view(torch.float8_e4m3fn)
    return replace(encoded, codes=encoded.codes[:, rows].contiguous(), scales=scales)


def tokens(count: int, block: Block, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """bfloat16 [count, H], Gaussian."""
    if not 1 <= count <= MOST_TOKENS:
        raise UsageError(f"{count} tokens: choose 1 to {MOST_TOKENS}")
    return torch.randn(count, block.hidden, device=device, generator=torch.Generator(device).manual_seed(seed)).bfloat16()


def routing(kind: str, count: int, block: Block, device: str = "cpu", seed: int = 0) -> Routing:
    """random: every expert alike. skewed: experts drawn by a power law, as trained routers do. concentrated: every token to the
    same top_k experts, so that all others have none.
    """
    if kind not in ROUTINGS:
        raise unknown("routing", kind, ROUTINGS)
    if block.top_k > block.experts:
        raise InputError(f"top-k {block.top_k} of {block.experts} experts: no token can choose so many")
    generator = torch.Generator(device).manual_seed(seed)
    logits = torch.randn(count, block.experts, device=device, generator=generator)
    rank = torch.randperm(block.experts, device=device, generator=generator).float()
    if kind == "skewed":
        logits -= 1.5 * torch.log1p(rank)
    if kind == "concentrated":
        logits -= 1e6 * (rank >= block.top_k)
    weights, ids = torch.softmax(logits, -1).topk(block.top_k)
    return Routing(ids.int().contiguous(), (weights / weights.sum(-1, keepdim=True)).float().contiguous())


# From a checkpoint ----------------------------------------------------------------------------------------------------


def from_checkpoint(checkpoint, layer: int, hit: tuple[int, ...], device: str = "cpu", tp: int = 1) -> Experts:
    """The experts ``hit`` of a decoder layer, and no byte of any other. tp: the first of so many ranks' share of each expert.

    A kernel takes one global scale for gate and up: where the checkpoint has two, the larger is used and the other's block scales are
    rounded again. Input scales are the largest over these experts, as kernels that quantise the tokens once need it; where the
    checkpoint has none (weights only), those of synthetic experts.
    InputError when the layer has no NVFP4 experts, or fused ones.
    """
    from helpers.kernels.geometry import block_of
    from helpers.nvfp4.audit.plan import plan
    from helpers.nvfp4.audit.scan import Reader

    jobs = {(job.expert, job.projection): job for job in plan(checkpoint) if job.layer == layer and job.expert in set(hit)}
    if not jobs:
        layers = sorted({job.layer for job in plan(checkpoint) if job.expert is not None and job.layer is not None})
        raise InputError(f"{checkpoint.name}: layer {layer} has no NVFP4 experts; layers that have: {layers[:12]}")
    if any(job.packed_axis != -1 for job in jobs.values()):
        raise InputError(f"{checkpoint.name}: layer {layer} keeps its experts fused in one tensor; only separate ones are read here")
    with Reader() as reader:
        read = {key: _matrix(job, reader) for key, job in jobs.items()}
        amax = {name: [reader.scalar(jobs[e, name].input_scale) for e in hit if (e, name) in jobs] for name in ("up", "down")}
    gate = stack([read[e, "gate"] for e in hit]) if (hit[0], "gate") in read else None
    up, down = (stack([read[e, name] for e in hit]) for name in ("up", "down"))
    if gate is not None and not torch.equal(gate.global_scale, up.global_scale):
        pairs = [collapse_globals(gate[e], up[e], "maximum") for e in range(len(hit))]
        gate, up = stack([g for g, _ in pairs]), stack([u for _, u in pairs])
    gate, up, down = (None if p is None else cut(p, tp, 0) for p, cut in ((gate, row_slice), (up, row_slice), (down, column_slice)))
    block = replace(block_of(checkpoint), experts=len(hit), intermediate=up.shape[-2])
    scales = (_input_scale(amax[name], usual, len(hit), device) for name, usual in (("up", FIRST_AMAX), ("down", SECOND_AMAX)))
    return Experts(block, *(None if p is None else moved(p, device) for p in (gate, up, down)), *scales, tuple(hit))


def _matrix(job, reader) -> Nvfp4:
    codes, scales, g = (torch.from_numpy(reader.all(part)) for part in (job.codes, job.scales, job.global_scale))
    g = g.view(torch.float32).reshape(())
    codes, scales = codes.view(job.codes.shape), scales.view(torch.float8_e4m3fn).view(job.scales.shape)
    return Nvfp4(codes, scales, 1 / g if job.reciprocal else g)


def _input_scale(stored: list[float | None], usual: float, count: int, device: str) -> torch.Tensor:
    known = [value for value in stored if value is not None]
    return torch.full((count,), max(known) if known else usual / FULL_SCALE, device=device)


def moved(part: Nvfp4, device) -> Nvfp4:
    return replace(part, codes=part.codes.to(device), scales=part.scales.to(device), global_scale=part.global_scale.to(device))
