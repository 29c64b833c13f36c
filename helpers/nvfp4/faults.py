"""Ways in which weights go wrong between a checkpoint and a kernel, each with its inverse, so that a fault can be named.

A wrong layer only says "the numbers are off". Undoing each known fault in turn and looking which one brings the error back to
quantisation noise says what was done to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from helpers.nvfp4.codec import Nvfp4, decode, encode
from helpers.nvfp4.compare import sqnr_db
from helpers.nvfp4.layouts import swizzle_128x4, unswizzle_128x4
from helpers.nvfp4.moe import Expert

# Calibrations differ by a few tenths of a decibel in what they reach; every fault here costs ten or more.
NOISE_DB = 1.0


@dataclass(frozen=True)
class Fault:
    """what: one line. inject and undo: Nvfp4 [..., rows, K] -> Nvfp4; undo is None where the fault destroys what it touches."""

    name: str
    what: str
    inject: Callable[[Nvfp4], Nvfp4]
    undo: Callable[[Nvfp4], Nvfp4] | None


def _swap_nibbles(x: Nvfp4) -> Nvfp4:
    return replace(x, codes=(x.codes << 4) | (x.codes >> 4))


def _transpose_scales(x: Nvfp4) -> Nvfp4:
    return replace(x, scales=x.scales.transpose(-1, -2).contiguous().view(x.scales.shape))


def _untranspose_scales(x: Nvfp4) -> Nvfp4:
    *lead, rows, cols = x.scales.shape
    return replace(x, scales=x.scales.reshape(*lead, cols, rows).transpose(-1, -2).contiguous())


def _roll_swizzled(x: Nvfp4, by: int) -> Nvfp4:
    swizzled = swizzle_128x4(x.scales)
    rolled = swizzled.view(torch.uint8).flatten(-2).roll(by, -1).view(swizzled.shape).view(swizzled.dtype)
    return replace(x, scales=unswizzle_128x4(rolled, *x.scales.shape[-2:]))


def _roll_rows(x: Nvfp4, by: int) -> Nvfp4:
    scales = x.scales.view(torch.uint8).roll(by, -2).view(x.scales.dtype)
    return replace(x, codes=x.codes.roll(by, -2), scales=scales)


def _zero_scales(x: Nvfp4) -> Nvfp4:
    return replace(x, scales=torch.zeros_like(x.scales))


def _reciprocal(x: Nvfp4) -> Nvfp4:
    return replace(x, global_scale=1 / x.global_scale)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("swapped nibbles", "the high nibble read as the even column", _swap_nibbles, _swap_nibbles),
        Fault("transposed scales", "[rows, K/16] filled in the order of [K/16, rows]", _transpose_scales, _untranspose_scales),
        Fault(
            "off-by-one swizzle",
            "the 128x4 scale storage read one byte late",
            lambda x: _roll_swizzled(x, 1),
            lambda x: _roll_swizzled(x, -1),
        ),
        Fault("missing scales", "block scales never written, left at zero", _zero_scales, None),
        Fault("reciprocal global scale", "2688/amax read as amax/2688, or the other way round", _reciprocal, _reciprocal),
        Fault("shifted rows", "codes and scales one row off", lambda x: _roll_rows(x, 1), lambda x: _roll_rows(x, -1)),
    )
}


@dataclass(frozen=True)
class Diagnosis:
    """expected_db: signal to noise of encoding the original afresh. found_db: of what is there. undone_db: fault -> after undoing it.
    fault: "" when found is within a decibel of expected; else the fault whose undoing restores that; else "unknown"."""

    expected_db: float
    found_db: float
    undone_db: dict[str, float]
    fault: str


def diagnose(found: Nvfp4, original: torch.Tensor) -> Diagnosis:
    """Compare ``found`` with the weights [rows, K] it was made from, and name what was done to it."""
    expected = sqnr_db(original, decode(encode(original, found.recipe), torch.float32))
    undone = {name: sqnr_db(original, decode(fault.undo(found), torch.float32)) for name, fault in FAULTS.items() if fault.undo is not None}
    return _name(expected, sqnr_db(original, decode(found, torch.float32)), undone, bool((found.scales.float() == 0).all()))


def diagnose_expert(found: Expert, gate: torch.Tensor, up: torch.Tensor) -> Diagnosis:
    """The same for a gated expert's first projections [I, H], where the two can also have changed places."""
    as_found = torch.cat((decode(found.gate, torch.float32), decode(found.up, torch.float32)))
    swapped = torch.cat((decode(found.up, torch.float32), decode(found.gate, torch.float32)))
    original = torch.cat((gate, up))
    fresh = torch.cat([decode(encode(part, found.up.recipe), torch.float32) for part in (gate, up)])
    undone = {"gate and up swapped": sqnr_db(original, swapped)}
    return _name(sqnr_db(original, fresh), sqnr_db(original, as_found), undone, False)


def _name(expected: float, found: float, undone: dict[str, float], empty: bool) -> Diagnosis:
    if found >= expected - NOISE_DB:
        fault = ""
    elif empty:
        fault = "missing scales"
    else:
        best = max(undone, key=undone.__getitem__)
        fault = best if undone[best] >= expected - NOISE_DB else "unknown"
    return Diagnosis(expected, found, undone, fault)
