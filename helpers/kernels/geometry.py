"""The shape of one layer's routed experts as one GPU holds them: what decides which kernels and tactics are legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.errors import UsageError

if TYPE_CHECKING:
    from helpers.checkpoint import Checkpoint

NVFP4_BLOCK = 16


@dataclass(frozen=True)
class Block:
    """Dimensions in elements. experts and intermediate are those of one rank, hidden is what the experts see, top_k is the model's.

    activation is the checkpoint's word for it (silu, relu2 …).
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    activation: str = "silu"

    def __post_init__(self):
        for size in ("hidden", "intermediate", "experts", "top_k"):
            if getattr(self, size) < 1:
                raise UsageError(f"{self.name}: {size} is {getattr(self, size)}, must be at least 1")
        for width in ("hidden", "intermediate"):
            if getattr(self, width) % NVFP4_BLOCK:
                raise UsageError(f"{self.name}: {width} is {getattr(self, width)}, not a multiple of NVFP4's block of {NVFP4_BLOCK}")

    @property
    def gated(self) -> bool:
        """Gate and up projections; otherwise up alone."""
        return not self.activation.startswith("relu")

    def __str__(self) -> str:
        return f"{self.name} (H {self.hidden}, I {self.intermediate}, {self.experts} experts, top-{self.top_k}, {self.activation})"


NAMED = {
    block.name: block
    for block in (
        Block("qwen3.5-397b", 4096, 1024, 512, 10),
        Block("deepseek-r1", 7168, 2048, 256, 8),
        Block("qwen3-30b-a3b", 2048, 768, 128, 8),
    )
}


def block_of(checkpoint: Checkpoint, tp: int = 1, ep: int = 1) -> Block:
    """One rank's share of a checkpoint's experts. UsageError without routed experts, and when tp or ep does not divide them."""
    geometry = checkpoint.geometry
    if geometry is None:
        raise UsageError(f"{checkpoint.name}: config.json names no routed experts; choose a mixture-of-experts checkpoint")
    return Block(
        checkpoint.name,
        geometry.expert_hidden,
        geometry.local_intermediate(tp, ep),
        geometry.local_experts(ep),
        geometry.top_k,
        geometry.activation,
    )
