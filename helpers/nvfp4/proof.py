"""Are the weights that reach a kernel the weights of the checkpoint? Exactly, expert by expert; and what is not has a name.

A processed block is brought back to the checkpoint's order (``processed``) and compared: codes, block scales, padding, the factors
that stand for the global scales, and the input scales. What differs is tried against the known ways to go wrong, and the reference
layer says whether it changes the output.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from helpers.nvfp4 import compare
from helpers.nvfp4.codec import Nvfp4
from helpers.nvfp4.faults import FAULTS
from helpers.nvfp4.moe import Activation, Expert, MoeOutput, Precision, collapse_globals, moe
from helpers.nvfp4.processed import (
    HeldExpert,
    Layout,
    Matrix,
    Scales,
    Tensors,
    factor,
    factor_name,
    global_scale,
    held_expert,
    input_scales,
)
from helpers.nvfp4.stored import PROJECTIONS, Share, Stored

TOKENS = 32
# The reference layer runs so many experts at most, spread over the rank's. Weights are compared for every one.
MOST_EXPERTS = 16

EXCHANGED = "gate and up exchanged"
ROUNDED_AGAIN = "block scales rounded again for the larger global scale"
PADDING_MISPLACED = "padding in the wrong place"
PADDING_NOT_ZERO = "padding holds numbers"
OTHER_EXPERT = "weights of another expert"
MISSING_SCALES = "missing scales"
UNEXPLAINED = "unexplained"
GLOBALS_EXCHANGED = "the other half's global scale"
GLOBALS_EXCHANGED_ROUNDED = "the other half's global scale, rounded to bfloat16"
GLOBALS_LARGER = "the larger global scale for both halves"
GLOBALS_ROUNDED = "global scale rounded to bfloat16"
GLOBALS_RECIPROCAL = "reciprocal global scale"
GLOBALS_MOVED = "global scales of other experts"
INPUTS_MISSING = "input scale missing, 1 stands in"
INPUTS_ONE = "all input scales are 1"
INPUTS_FIRST = "input scales of one expert for all"
INPUTS_LOCAL = "largest input scale of the rank's experts alone"
NOT_A_NUMBER = "a scale is zero, infinite or not a number"


@dataclass(frozen=True)
class Row:
    """One line of a proof. compared: bytes of codes and of block scales, blocks of padding, else numbers. experts: by the
    checkpoint's numbers, where it differs; () for what all experts share. faults: what each difference is."""

    what: str
    projection: str
    compared: int
    differing: int
    experts: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proof:
    """rows: everything that was compared. exact: the reference layer gives the same bits over the processed weights.

    output: how far apart the two outputs are, against what another order of additions alone may change; rounded: against a kernel
    that also rounds its result to bfloat16. None where there is no output: a scale is not a number, or the rank holds no rows.
    """

    layout: Layout
    share: Share
    rows: tuple[Row, ...]
    exact: bool
    output: compare.Errors | None
    rounded: compare.Errors | None

    @property
    def faults(self) -> dict[str, tuple[Row, ...]]:
        """Fault -> the rows it stands in."""
        names = dict.fromkeys(fault for row in self.rows for fault in row.faults)
        return {name: tuple(row for row in self.rows if name in row.faults) for name in names}


def prove(stored: Stored, tensors: Tensors, layout: Layout, share: Share, activation: Activation) -> Proof:
    """Compare one rank's processed block with the checkpoint's."""
    scales, inputs = _inputs(stored, tensors, layout, share)
    globals_, factors = _factors(stored, tensors, layout, share, scales)
    rows = (*_weights(stored, tensors, layout, share), *factors, *inputs)
    outputs = _outputs(stored, tensors, layout, share, globals_, scales, activation)
    if outputs is None:
        return Proof(layout, share, rows, False, None, None)
    found, reference = outputs
    return Proof(
        layout,
        share,
        rows,
        torch.equal(found.output, reference.output),
        compare.by(found.output, reference.output, reference.variance.sqrt()),
        compare.by(found.output, reference.output, compare.deviation(reference)),
    )


# Weights ----------------------------------------------------------------------------------------------------------------


def _wanted(stored: Stored, layout: Layout, share: Share, expert: int, kept: int) -> dict[str, Nvfp4]:
    """The rank's part of each matrix of an expert. kept: rows of gate that the runner keeps, by which some also cut."""
    each = kept if layout.cuts_padded else None
    return {name: share.cut(stored.matrix(expert, name), name, each) for name in stored.projections}


def _weights(stored: Stored, tensors: Tensors, layout: Layout, share: Share) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for expert in range(share.first, share.first + share.experts):
        held = held_expert(tensors, layout, expert - share.first, stored.gated)
        wanted = _wanted(stored, layout, share, expert, held.up[0].shape[0])
        for what, projection, compared, differing in _differences(held, wanted):
            row = rows.get((what, projection), Row(what, projection, 0, 0))
            row = replace(row, compared=row.compared + compared, differing=row.differing + differing)
            if differing:
                fault = PADDING_NOT_ZERO if what == "padding" else _explain(stored, layout, share, held, wanted, projection)
                row = replace(row, experts=(*row.experts, expert), faults=tuple(dict.fromkeys((*row.faults, fault))))
            rows[what, projection] = row
    return [row for row in rows.values() if row.compared]


def _differences(held: HeldExpert, wanted: dict[str, Nvfp4]) -> Iterator[tuple[str, str, int, int]]:
    """(what, projection, how many were compared, how many differ)."""
    for projection, want in wanted.items():
        codes, scales = getattr(held, projection)
        found = _front(codes, scales, want)
        yield "codes", projection, want.codes.numel(), int((found.codes != want.codes).sum())
        yield "block scales", projection, want.scales.numel(), int((_bits(found.scales) != _bits(want.scales)).sum())
        rows, columns = want.scales.shape
        blocks = (codes.unflatten(-1, (-1, 8)) & 0x77).amax(-1) * (scales.float() != 0)
        padding = blocks[:, columns:] if projection == "down" else blocks[rows:]
        yield "padding", projection, padding.numel(), int(padding.count_nonzero())


def _bits(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(torch.uint8)


def _front(codes: torch.Tensor, scales: torch.Tensor, want: Nvfp4) -> Nvfp4:
    """As many rows and columns as are wanted, from the first."""
    rows, half = want.codes.shape
    return Nvfp4(codes[:rows, :half], scales[:rows, : half // 8], want.global_scale)


def _same(found: Nvfp4, want: Nvfp4) -> bool:
    return torch.equal(found.codes, want.codes) and torch.equal(_bits(found.scales), _bits(want.scales))


def _explain(stored: Stored, layout: Layout, share: Share, held: HeldExpert, wanted: dict[str, Nvfp4], projection: str) -> str:
    """Which known fault turns what was wanted into what is held."""
    want = wanted[projection]
    matrix = getattr(held, projection)
    found = _front(*matrix, want)
    if stored.gated and projection != "down":
        if _same(found, wanted[_other(projection)]):
            return EXCHANGED
        collapsed = collapse_globals(wanted["gate"], wanted["up"], "maximum")
        if _same(found, collapsed[PROJECTIONS.index(projection)]):
            return ROUNDED_AGAIN
    if not _bits(found.scales).any():
        return MISSING_SCALES
    for name, fault in FAULTS.items():
        if fault.undo is not None and _same(fault.undo(found), want):
            return name
    if _padded_in_front(matrix, want, projection) or (projection != "down" and _padded_together(held, wanted)):
        return PADDING_MISPLACED
    kept = held.up[0].shape[0]
    if any(_same(found, _wanted(stored, layout, share, expert, kept)[projection]) for expert in range(stored.experts)):
        return OTHER_EXPERT
    return UNEXPLAINED


def _other(projection: str) -> str:
    return {"gate": "up", "up": "gate"}[projection]


def _padded_in_front(matrix: Matrix, want: Nvfp4, projection: str) -> bool:
    codes, scales = matrix
    rows, half = want.codes.shape
    if projection == "down":
        return _same(Nvfp4(codes[:, -half:], scales[:, -(half // 8) :], want.global_scale), want)
    return _same(Nvfp4(codes[-rows:], scales[-rows:], want.global_scale), want)


def _padded_together(held: HeldExpert, wanted: dict[str, Nvfp4]) -> bool:
    """Are gate and up padded behind the second of them, where each half must be padded by itself?"""
    rows = wanted["up"].codes.shape[0]
    if held.gate is None or len(held.up[0]) == rows:
        return False
    for order in (("gate", "up"), ("up", "gate")):
        codes, scales = (torch.cat(parts) for parts in zip(*(getattr(held, name) for name in order), strict=True))
        halves = [Nvfp4(codes[start : start + rows], scales[start : start + rows], wanted["up"].global_scale) for start in (0, rows)]
        if all(_same(half, wanted[name]) for half, name in zip(halves, order, strict=True)):
            return True
    return False


# The numbers beside the weights ---------------------------------------------------------------------------------------------


def _inputs(stored: Stored, tensors: Tensors, layout: Layout, share: Share) -> tuple[Scales | None, list[Row]]:
    """(the input scales that the runner uses, what was compared)."""
    if not layout.inputs:
        return None, []
    filled = stored.filled_inputs
    rules = {
        INPUTS_MISSING if stored.lacks_inputs else "": filled,
        INPUTS_FIRST: tuple(scale[share.first].expand(scale.shape) for scale in filled),
        INPUTS_ONE: tuple(torch.ones_like(scale) for scale in filled),
        INPUTS_LOCAL: tuple(scale[share.local].max().expand(scale.shape) for scale in filled),
    }
    used, rows = [], []
    for product, name in enumerate(layout.inputs):
        found = tensors[name].float()
        expected = {fault: input_scales(layout, *given, share.local)[product] for fault, given in rules.items()}
        fault = next((fault for fault, scale in expected.items() if _equal_spread(found, 1 / scale)), None)
        used.append(1 / found if fault is None else expected[fault])
        faults = (_unexplained(found),) if fault is None else (fault,) if fault else ()
        projection = "gate and up" if product == 0 and stored.gated else ("up", "down")[product]
        rows.append(Row("input scale", projection, found.numel(), found.numel() if faults else 0, (), faults))
    return (used[0], used[1]), rows


def _equal_spread(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal in every bit, where one number may stand for as many equal ones."""
    wide = torch.broadcast_shapes(found.shape, expected.shape)
    return torch.equal(found.expand(wide), expected.expand(wide))


def _usable(numbers: torch.Tensor) -> bool:
    return bool((numbers.isfinite() & (numbers > 0)).all())


def _unexplained(found: torch.Tensor) -> str:
    return UNEXPLAINED if _usable(found) else NOT_A_NUMBER


def _factors(
    stored: Stored, tensors: Tensors, layout: Layout, share: Share, scales: Scales | None
) -> tuple[dict[str, torch.Tensor], list[Row]]:
    """(the global scales that the factors stand for, what was compared)."""
    used, rows = {}, []
    for projection in stored.projections:
        found = tensors[factor_name(layout, projection, stored.gated)].float()
        tried = _globals(stored, share, projection)
        expected = [factor(layout, projection, stored.gated, g, scales).expand(found.shape) for _, g in tried]
        used[projection] = global_scale(layout, projection, stored.gated, found, scales)
        faults = {}
        for i in range(share.experts):
            match = next((number for number, want in enumerate(expected) if found[i] == want[i]), None)
            if match is not None:  # what it was made of, and not what a division makes of it
                used[projection][i] = tried[match][1][i]
            if match != 0:
                faults[share.first + i] = _unexplained(found[i]) if match is None else tried[match][0]
        rows.append(Row("global scale", projection, share.experts, len(faults), tuple(faults), tuple(dict.fromkeys(faults.values()))))
    return used, rows


def _globals(stored: Stored, share: Share, projection: str) -> list[tuple[str, torch.Tensor]]:
    """(fault, the rank's global scales under it); the first is none."""
    whole = stored.globals[projection]
    own = whole[share.local]
    tried = [("", own), (GLOBALS_ROUNDED, own.bfloat16().float()), (GLOBALS_RECIPROCAL, 1 / own)]
    if stored.gated and projection != "down":
        other = stored.globals[_other(projection)][share.local]
        larger = torch.maximum(own, other)
        tried += [(GLOBALS_EXCHANGED, other), (GLOBALS_EXCHANGED_ROUNDED, other.bfloat16().float()), (GLOBALS_LARGER, larger)]
    return tried + [(GLOBALS_MOVED, whole.roll(by)[share.local]) for by in (1, -1, share.experts, -share.experts)]


# The layer's output -----------------------------------------------------------------------------------------------------


def _outputs(
    stored: Stored,
    tensors: Tensors,
    layout: Layout,
    share: Share,
    globals_: dict[str, torch.Tensor],
    scales: Scales | None,
    activation: Activation,
) -> tuple[MoeOutput, MoeOutput] | None:
    """The reference layer over (the processed weights, the checkpoint's) with the same tokens."""
    kept = held_expert(tensors, layout, 0, stored.gated).up[0].shape[0]
    if not all(map(_usable, (*globals_.values(), *(scales or ())))) or not _wanted(stored, layout, share, 0, kept)["up"].codes.numel():
        return None

    def held(expert: int) -> Expert:
        one = held_expert(tensors, layout, expert, stored.gated)
        parts = {name: Nvfp4(*(x.contiguous() for x in getattr(one, name)), globals_[name][expert]) for name in stored.projections}
        return Expert(parts.get("gate"), parts["up"], parts["down"])

    def original(expert: int) -> Expert:
        parts = _wanted(stored, layout, share, share.first + expert, kept)
        return Expert(parts.get("gate"), parts["up"], parts["down"])

    chosen = torch.arange(0, share.experts, -(-share.experts // MOST_EXPERTS))
    top = min(2, len(chosen))
    ids = chosen[(torch.arange(TOKENS).unsqueeze(1) + torch.arange(top)) % len(chosen)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, original(0).up.shape[1], generator=generator).bfloat16()
    router = torch.softmax(torch.randn(TOKENS, top, generator=generator), -1)
    options = {"activation": activation, "precision": Precision("w4a16" if scales is None else "w4a4")}
    right = input_scales(layout, *stored.filled_inputs, share.local)
    return (
        moe(x, held, ids, router, input_scales=scales or (None, None), **options),
        moe(x, original, ids, router, input_scales=right or (None, None), spread=True, **options),
    )
