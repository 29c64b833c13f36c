"""Is a kernel's output right? Tolerances follow from what the kernel rounds and where; nothing here is tuned to a kernel.

The reference layer (``helpers.nvfp4.moe``) does every rounding that belongs to the format. A kernel rounds more: partial results pass
through bfloat16 on their way between two products. ``Roundings`` says where, as the kernel's source does it; what can be done
exactly is done in the reference, and the rest widens the tolerance by exactly the variance of that many roundings.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from helpers.errors import unknown
from helpers.kernels.inputs import Experts, Routing
from helpers.nvfp4 import compare
from helpers.nvfp4.codec import Nvfp4
from helpers.nvfp4.layouts import padded, unswizzle_128x4
from helpers.nvfp4.moe import HALF_BF16, Activation, MoeOutput, Precision, moe


@dataclass(frozen=True)
class Roundings:
    """Roundings to bfloat16 that the format does not ask for.

    preactivation: gate and up, before the activation. activated: the activation and its factor, each before they are multiplied.
    contribution: of each expert's output, of the router's weight, of their product, together how many. sums: partial sums over a
    token's experts are kept in bfloat16.
    """

    preactivation: bool = False
    activated: bool = False
    contribution: int = 0
    sums: bool = False


@dataclass(frozen=True)
class RoundedActivation(Activation):
    """An activation whose inputs, and with ``activated`` also its two factors, pass through bfloat16."""

    activated: bool = False

    def __call__(self, gate, up):
        gate, up = (None if x is None else _bf16(x) for x in (gate, up))
        if self.activated and self.kind == "silu":
            return _bf16(super().__call__(gate, torch.ones_like(up))) * up
        return super().__call__(gate, up)

    def variance(self, gate, up, gate_variance, up_variance):
        # As in the reference's own rounding: values a distance d apart differ by a whole step with probability d / step.
        gate_variance, up_variance = (
            None if v is None else v + 0.8 * v.sqrt() * _step(x) for x, v in ((gate, gate_variance), (up, up_variance))
        )
        return super().variance(gate, up, gate_variance, up_variance)


def _bf16(x):
    return x.bfloat16().float()


def _step(x):
    return 2 * HALF_BF16 * torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=2.0**-126))))


@dataclass(frozen=True, eq=False)
class Reference:
    """What the layer should give, float32 [T, H], and the standard deviation [T, H] of what a right kernel's output is off by."""

    output: torch.Tensor
    sigma: torch.Tensor


def layer(experts: Experts, x: torch.Tensor, routing: Routing, precision: Precision, roundings: Roundings) -> MoeOutput:
    """The reference layer, with the roundings that can be done exactly; one expert in memory at a time, on the device of the tokens."""
    kind = experts.block.activation
    activation = RoundedActivation(kind, activated=roundings.activated) if roundings.preactivation else Activation(kind)
    scales = (experts.first_input, experts.second_input) if precision.kind == "w4a4" else (None, None)
    return moe(x, experts, routing.ids, routing.weights, activation=activation, precision=precision, input_scales=scales, spread=True)


def reference(expected: MoeOutput, roundings: Roundings, top_k: int) -> Reference:
    return Reference(expected.output, tolerance(expected, roundings, top_k))


def tolerance(expected: MoeOutput, roundings: Roundings, top_k: int) -> torch.Tensor:
    """A rounding's variance is a third of half a unit squared; partial sums' squares add up to (k + 1) / 2 contributions' on average."""
    each = roundings.contribution + ((top_k + 1) / 2 if roundings.sums else 0)
    return (compare.deviation(expected).square() + each * expected.squares * (HALF_BF16**2 / 3)).sqrt()


def errors(observed: torch.Tensor, expected: Reference) -> dict[str, float | bool]:
    """The numbers a table shows, and whether they are accepted; NaN and Inf are counted and never accepted.

    Accepted as in ``compare``: the root mean square of the difference is at most the allowed one, and all but a thousandth of the
    elements lie inside the tolerance. Of one row that is a count of one or two, so three standard deviations of it are allowed too.
    """
    found = compare.by(observed, expected.output, expected.sigma)
    bad = int((~observed.isfinite()).sum())
    outside, usual = (1 - float(found.within)) * observed.numel(), (1 - compare.WITHIN) * observed.numel()
    return {
        "cosine": float(found.cosine),
        "relative_l2": float(found.relative_l2),
        "within": float(found.within),
        "ratio": float(found.ratio),
        "not_finite": bad,
        "accepted": float(found.ratio) <= 1 and outside <= usual + 3 * math.sqrt(usual) and not bad,
    }


def between(a: torch.Tensor, b: torch.Tensor, expected_a: Reference, expected_b: Reference) -> dict[str, float | bool]:
    """Two kernels against each other, over and above what their references differ by: both may be off, so the variances add."""
    centre = expected_b.output + (expected_a.output - expected_b.output)
    apart = Reference(centre, (expected_a.sigma.square() + expected_b.sigma.square()).sqrt())
    found = errors(a.float() - b.float() + expected_b.output, apart)
    return {"cosine": float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), 0)), "accepted": found["accepted"]}


def one_expert_a_token(routing: Routing) -> Routing:
    """The same experts, but all of a token's weight on its first one: each row of the output is then one expert's own."""
    weights = torch.zeros_like(routing.weights)
    weights[:, 0] = 1.0
    return Routing(routing.ids, weights)


def per_expert(observed: torch.Tensor, expected: Reference, routing: Routing, roundings: Roundings) -> dict[str, float | int]:
    """Of an output under ``one_expert_a_token``: how many experts it shows, how many are accepted, and the worst of them.

    An expert may have a single row, and there one number that rounds the other way shifts every output: no scatter, but no fault. So
    what a bound allows is accepted too: no more than HALF_BF16 of relative error for each rounding that two implementations differ by.
    """
    differing = 3 + 2 * roundings.preactivation + roundings.activated + roundings.contribution
    bound = HALF_BF16 * math.sqrt(differing)
    first = routing.ids[:, 0]
    worst, accepted, numbers = 1.0, 0, first.unique().tolist()
    for expert in numbers:
        rows = first == expert
        found = errors(observed[rows], Reference(expected.output[rows], expected.sigma[rows]))
        worst = min(worst, found["cosine"])
        accepted += found["accepted"] or (not found["not_finite"] and found["relative_l2"] <= bound)
    return {"experts": len(numbers), "accepted": accepted, "worst_cosine": worst}


# Faults: what a loader can do wrong, done to the experts before a kernel gets them ------------------------------------


def _swap(experts: Experts) -> Experts:
    return replace(experts, gate=experts.up, up=experts.gate)


def _linear_as_swizzled(part: Nvfp4) -> Nvfp4:
    rows, cols = part.scales.shape[-2:]
    if padded(rows, cols, 128) != (rows, cols):
        return part  # padding would not fit: such a matrix cannot be given to the kernel unswizzled
    return replace(part, scales=unswizzle_128x4(part.scales.view(torch.uint8), rows, cols).view(torch.float8_e4m3fn))


def _each(experts: Experts, change: Callable[[Nvfp4], Nvfp4]) -> Experts:
    gate = None if experts.gate is None else change(experts.gate)
    return replace(experts, gate=gate, up=change(experts.up), down=change(experts.down))


def _rolled(part: Nvfp4) -> Nvfp4:
    scales = part.scales.view(torch.uint8).roll(1, 0).view(torch.float8_e4m3fn)
    return replace(part, codes=part.codes.roll(1, 0), scales=scales, global_scale=part.global_scale.roll(1, 0))


FAULTS: dict[str, Callable[[Experts], Experts]] = {
    "gate and up swapped": _swap,
    "linear scales given as swizzled": lambda experts: _each(experts, _linear_as_swizzled),
    "global scale 2 % too large": lambda experts: replace(
        experts, down=replace(experts.down, global_scale=experts.down.global_scale * 1.02)
    ),
    "weights of the next expert": lambda experts: _each(experts, _rolled),
}


def inject(fault: str, experts: Experts) -> Experts:
    if fault not in FAULTS:
        raise unknown("fault", fault, FAULTS)
    return FAULTS[fault](experts)
