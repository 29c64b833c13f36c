"""How far an output is from the reference: by row, by tile, by expert; and whether that is far enough to be wrong."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from helpers.nvfp4.moe import HALF_BF16, ExpertOutput, MoeOutput

# Of 1000 elements 999 lie within this many standard deviations of a normal distribution, with room for a mixture of them.
DEVIATIONS = 5.0
WITHIN = 0.999


@dataclass(frozen=True)
class Errors:
    """One number a group (a row, a tile, everything), float32. within: share of elements inside the tolerance. ratio: root mean square
    of the difference over that of the standard deviation a correct implementation has; above 1 something else is at work."""

    maximum: torch.Tensor
    relative_l2: torch.Tensor
    cosine: torch.Tensor
    within: torch.Tensor
    ratio: torch.Tensor

    @property
    def accepted(self) -> torch.Tensor:
        """Per group: within at least 0.999 and ratio at most 1. Both follow from the format; neither is tuned."""
        return (self.within >= WITHIN) & (self.ratio <= 1)


def deviation(reference: MoeOutput, added_in_bfloat16: int = 0) -> torch.Tensor:
    """Standard deviation [T, H] of what a correct implementation's bfloat16 output differs by: the layer's spread, and rounding.

    A number rounded to bfloat16 is off by at most HALF_BF16 of it, evenly: its variance is a third of that square. added_in_bfloat16:
    how many experts a token has, for a kernel that adds them up in bfloat16: then each contribution is rounded, and each partial
    sum, whose squares add up to (k + 1) / 2 times the contributions' on average.
    """
    variance = reference.variance + (HALF_BF16 * reference.output).square() / 3
    if added_in_bfloat16:
        variance = variance + reference.squares * (1 + (added_in_bfloat16 + 1) / 2) * (HALF_BF16**2 / 3)
    return variance.sqrt()


def by(observed: torch.Tensor, expected: torch.Tensor, sigma: torch.Tensor, tile: tuple[int, int] | None = None) -> Errors:
    """Errors of [T, H] over everything (tile None), or a [T/tile[0], H/tile[1]] grid of tiles; (1, H) is by row. Ragged edges count."""
    rows, cols = observed.shape
    height, width = tile or (rows, cols)

    def sums(x: torch.Tensor) -> torch.Tensor:
        return _tiles(x.double(), height, width).sum((1, 3))

    difference = (observed.float() - expected.float()).nan_to_num(nan=torch.inf)
    o, e = observed.double(), expected.double()
    squares, reference = sums(difference.double().square()), sums(e.square())
    inside = (difference.abs() <= DEVIATIONS * sigma).float()
    result = Errors(
        maximum=_tiles(difference.abs(), height, width).amax((1, 3)),
        relative_l2=(squares / reference).sqrt(),
        cosine=sums(o * e) / (sums(o.square()) * reference).sqrt(),
        within=sums(inside) / sums(torch.ones_like(inside)),
        ratio=(squares / sums(sigma.square())).sqrt(),
    )
    if tile is None:
        return Errors(**{name: value.squeeze() for name, value in vars(result).items()})
    return result


def _tiles(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    rows, cols = x.shape
    x = pad(x, (0, -cols % width, 0, -rows % height))
    return x.view(x.shape[0] // height, height, x.shape[1] // width, width)


def by_expert(observed: dict[int, torch.Tensor], reference: list[ExpertOutput]) -> dict[int, Errors]:
    """expert -> Errors of its own output [n, H], before the router's weight."""
    outputs = {part.expert: MoeOutput(part.output, part.variance, None) for part in reference}
    return {expert: by(observed[expert], own.output, deviation(own)) for expert, own in outputs.items()}


def sqnr_db(reference: torch.Tensor, observed: torch.Tensor) -> float:
    """Signal to quantisation noise in decibels: 10 log10 of the reference's energy over the difference's. Infinite when equal."""
    noise = (reference.float() - observed.float()).double().square().sum()
    return float(10 * torch.log10(reference.double().square().sum() / noise))


def flashinfer_moe_test_accepts(observed: torch.Tensor, expected: torch.Tensor) -> tuple[bool, float]:
    """(accepted, share within) by the criterion of FlashInfer's own MoE tests, to show what it lets through.

    97 % of the elements are off by less than the larger of 0.05 and 1.5 standard deviations of the output, or by less than half of
    themselves (flashinfer tests/moe/utils.py: check_accuracy, commit fb28d724).
    """
    difference = (observed.float() - expected.float()).abs()
    absolute = max(0.05, 1.5 * max(float(expected.float().std()), 0.01))
    share = float(((difference < absolute) | (difference / (expected.float().abs() + 1e-8) < 0.5)).float().mean())
    return share >= 0.97, share
