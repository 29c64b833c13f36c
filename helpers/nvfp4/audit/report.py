"""What an audit means: findings, maps of layer by expert, and the worst of each kind."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from helpers.errors import unknown
from helpers.findings import Finding, ordered
from helpers.nvfp4.audit.run import Audit
from helpers.nvfp4.audit.scan import MatrixStats
from helpers.nvfp4.codec import Nvfp4, decode, encode
from helpers.nvfp4.compare import sqnr_db
from helpers.nvfp4.elements import unpack
from helpers.nvfp4.moe import collapse_globals
from helpers.nvfp4.recipes import FULL_SCALE

SGLANG = "sglang 0.5.23 modelopt_quant.py: _compute_gemm1_alphas, ModelOptNvFp4FusedMoEMethod.process_weights_after_loading"
FORMAT = "NVFP4: E4M3 block scales without sign, float32 global scale"
EXPORT_AGAIN = "quantise and export the model again, and compare the file's checksum with its source"

# Largest root mean square a trained weight matrix plausibly has; the reciprocal of a global scale puts it thousands above.
PLAUSIBLE_RMS = 100.0


@dataclass(frozen=True)
class Metric:
    """of: a matrix's number. worst: "high" or "low". what: for a caption, with its unit."""

    name: str
    what: str
    worst: str
    of: Callable[[MatrixStats], float]


def _share(count: str, of: str) -> Callable[[MatrixStats], float]:
    return lambda m: getattr(m, count) / max(getattr(m, of), 1)


def gaussian_distance(m: MatrixStats) -> float:
    """Total variation between the magnitudes' shares and those of quantised Gaussian numbers: 0 equal, 1 nothing in common."""
    counts = np.array(m.codes, float).reshape(2, 8).sum(0)
    return float(np.abs(counts / max(counts.sum(), 1) - gaussian_magnitudes()).sum() / 2)


@cache
def gaussian_magnitudes() -> np.ndarray:
    """Share of each of the 8 magnitudes among the codes of Gaussian numbers, by encoding a quarter of a million."""
    x = torch.randn(1 << 10, 256, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount((unpack(encode(x).codes) & 7).flatten(), minlength=8).double()
    return (counts / counts.sum()).numpy()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("rms", "root mean square of the decoded weights", "low", lambda m: m.rms),
        Metric("global_scale", "global scale (multiplied in on decode)", "high", lambda m: m.global_scale),
        Metric("input_scale", "input scale (multiplied in on decode)", "high", lambda m: m.input_scale or math.nan),
        Metric("saturated", "share of block scales at 448", "high", _share("saturated", "blocks")),
        Metric("subnormal", "share of block scales below E4M3's normal range", "high", _share("subnormal", "blocks")),
        Metric("empty", "share of blocks of zeros", "high", _share("empty", "examined")),
        Metric("no_six", "share of blocks whose largest code is not 6", "high", _share("no_six", "examined")),
        Metric("gaussian", "distance of the codes from a Gaussian's (total variation)", "high", gaussian_distance),
        Metric("bits", "bits of information a weight, of 4.5 stored", "low", lambda m: m.code_bits + m.scale_bits / 16),
        Metric("sqnr", "signal to noise against the original, dB", "low", lambda m: math.nan if m.sqnr_db is None else m.sqnr_db),
    )
}


def metric(name: str) -> Metric:
    if name not in METRICS:
        raise unknown("audit metric", name, METRICS)
    return METRICS[name]


def worst(audit: Audit, name: str, count: int = 10) -> list[tuple[str, float]]:
    """(module, value), the worst first; matrices without the number are left out."""
    values = [(m.module, metric(name).of(m)) for m in audit.matrices]
    values = [(module, value) for module, value in values if not math.isnan(value)]
    return sorted(values, key=lambda pair: pair[1], reverse=metric(name).worst == "high")[:count]


def layer_map(audit: Audit, name: str, projection: str) -> tuple[np.ndarray, list[int], list[int]]:
    """(values [layers, experts], layers, experts) of the routed experts' projection; NaN where there is no such matrix."""
    chosen = [m for m in audit.matrices if m.expert is not None and m.layer is not None and m.projection == projection]
    layers, experts = sorted({m.layer for m in chosen}), sorted({m.expert for m in chosen})
    values = np.full((len(layers), len(experts)), np.nan)
    for m in chosen:
        values[layers.index(m.layer), experts.index(m.expert)] = metric(name).of(m)
    return values, layers, experts


def code_shares(audit: Audit) -> np.ndarray:
    """Share of each of the 16 codes over everything that was read."""
    counts = np.sum([m.codes for m in audit.matrices], axis=0)
    return counts / counts.sum()


def bits_a_weight(audit: Audit) -> float:
    """Entropy of the codes plus a sixteenth of the scales', averaged over the matrices by size: what 4.5 stored bits carry."""
    blocks = np.array([m.blocks for m in audit.matrices], float)
    return float(np.average([m.code_bits + m.scale_bits / 16 for m in audit.matrices], weights=blocks))


# Findings -------------------------------------------------------------------------------------------------------------


def findings(audit: Audit) -> tuple[Finding, ...]:
    """What the numbers prove or suggest, worst first, one finding a kind with the first few names in it. Stage: load."""
    found = [_bad_scales(audit), _bad_globals(audit), _dead(audit), _implausible(audit), _duplicates(audit)]
    found += [_gate_and_up(audit), _misaligned(audit), _clipped(audit), _underflow(audit), *_input_outliers(audit)]
    return ordered([finding for finding in found if finding is not None])


def _finding(
    audit: Audit, rule: str, severity: str, bad: list[MatrixStats], observed: str, expected: str, why: str, **more
) -> Finding | None:
    if not bad:
        return None
    names = ", ".join(m.module for m in bad[:3]) + (f" and {len(bad) - 3:,} more" if len(bad) > 3 else "")
    return Finding(
        id=f"load.{rule}",
        stage="load",
        severity=severity,
        read=f"{audit.checkpoint}: {names}",
        observed=f"{len(bad):,} of {len(audit.matrices):,} matrices: {observed}",
        expected=expected,
        why=why,
        source=more.get("source", FORMAT),
        remedy=more.get("remedy", EXPORT_AGAIN),
    )


def _bad_scales(audit: Audit) -> Finding | None:
    bad = [m for m in audit.matrices if m.nan or m.negative]
    counts = f"{sum(m.nan for m in bad):,} block scales are NaN (0x7F), {sum(m.negative for m in bad):,} negative"
    why = "a NaN scale makes 16 weights NaN and with them every output of the layer; the tensor core ignores the sign of a scale"
    return _finding(audit, "block_scale_not_a_number", "wrong_output", bad, counts, "positive numbers up to 448", why)


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _bad_globals(audit: Audit) -> Finding | None:
    bad = [m for m in audit.matrices if not _usable(m.global_scale) or (m.input_scale is not None and not _usable(m.input_scale))]
    shown = ", ".join(f"{m.global_scale:g}/{m.input_scale if m.input_scale is None else format(m.input_scale, 'g')}" for m in bad[:3])
    why = "the product is multiplied by it, and activations are divided by the input scale"
    return _finding(audit, "global_scale_unusable", "wrong_output", bad, f"global/input scale {shown}", "finite and positive", why)


def _dead(audit: Audit) -> Finding | None:
    bad = [m for m in audit.matrices if m.zero == m.blocks or (m.empty == m.examined and m.examined == m.blocks)]
    why = "the expert contributes nothing; either it was never written (a missing scale is left at zero) or it was dead before"
    return _finding(audit, "all_zero", "abstained", bad, "every block scale or every code is zero", "weights", why)


def _implausible(audit: Audit) -> Finding | None:
    bad = [m for m in audit.matrices if _usable(m.global_scale) and m.rms > PLAUSIBLE_RMS]
    why = "the weights decode to numbers no trained layer has: the global scale is probably stored as its reciprocal (2688/amax)"
    observed = f"root mean square up to {max((m.rms for m in bad), default=0):.3g}"
    return _finding(audit, "reciprocal_global_scale", "abstained", bad, observed, f"at most about {PLAUSIBLE_RMS:g}", why)


def duplicates(audit: Audit) -> list[list[MatrixStats]]:
    """Groups of matrices whose scales and (read) codes have the same checksums and counts. Matrices of zeros do not count."""
    groups = defaultdict(list)
    for m in audit.matrices:
        if m.rms > 0:
            groups[m.crc, m.codes, m.blocks, m.zero, m.saturated, m.subnormal].append(m)
    return [group for group in groups.values() if len(group) > 1]


def _duplicates(audit: Audit) -> Finding | None:
    bad = [m for group in duplicates(audit) for m in group]
    why = "two experts with the same weights are one expert twice: a copy at export, or an index off by one"
    what = "the same codes and scales as another" + ("" if audit.full else " in what was read")
    return _finding(audit, "duplicated", "abstained", bad, what, "no two alike", why)


def pairs(audit: Audit) -> list[tuple[MatrixStats, MatrixStats]]:
    """(gate, up) of each expert that has both."""
    halves: dict[tuple, dict[str, MatrixStats]] = defaultdict(dict)
    for m in audit.matrices:
        if m.projection in ("gate", "up"):
            halves[m.module.rpartition(".")[0]][m.projection] = m
    return [(half["gate"], half["up"]) for half in halves.values() if len(half) == 2]


def _gate_and_up(audit: Audit) -> Finding | None:
    apart = [(gate, up) for gate, up in pairs(audit) if gate.global_scale != up.global_scale]
    ratios = [up.global_scale / gate.global_scale for gate, up in apart if _usable(gate.global_scale) and _usable(up.global_scale)]
    why = (
        "a kernel with one scale for both either applies gate's to up, or the larger to both with the block scales rounded again; "
        "which of them runs, or one that takes two, depends on the runner"
    )
    first, larger = cost_of_collapsing(max(ratios, key=lambda ratio: abs(math.log(ratio)), default=1.0))
    observed = f"up's global scale over gate's is {min(ratios, default=1):.3g} to {max(ratios, default=1):.3g}; the widest leaves up "
    observed += f"{first:.0f} dB of signal over error under gate's scale, {larger:.0f} dB under the larger"
    remedy = "export with one weight_scale_2 for gate and up (ModelOpt does), or use a runner with a scale for each"
    bad = [gate for gate, _ in apart]
    return _finding(audit, "gate_up_scales_differ", "abstained", bad, observed, "equal", why, source=SGLANG, remedy=remedy)


def _misaligned(audit: Audit) -> Finding | None:
    # Windows that straddle two blocks hold neither block's 6 a quarter of the time; random bytes lack one in an eighth of the blocks.
    bad = [m for m in audit.matrices if _share("no_six", "examined")(m) > 0.1 and m.zero + m.empty < m.examined / 2]
    why = (
        "a block's scale is chosen so that its largest number becomes 6; where many blocks have none, codes and scales are not of the "
        "same blocks, or the scales were searched (MSE, four-over-six), which is no fault"
    )
    shares = [_share("no_six", "examined")(m) for m in bad]
    observed = f"up to {max(shares, default=0):.0%} of the blocks have no code of magnitude 6"
    remedy = f"nothing, if the scales were searched; compare with the original (audit --original); else {EXPORT_AGAIN}"
    return _finding(audit, "blocks_without_six", "note", bad, observed, "next to none with scales from the maximum", why, remedy=remedy)


def _clipped(audit: Audit) -> Finding | None:
    # In a small matrix several blocks come near the largest by chance.
    bad = [m for m in audit.matrices if m.blocks >= 4096 and _share("saturated", "blocks")(m) > 0.01]
    why = "blocks whose scale would exceed 448 are clipped: the global scale is too small for this tensor"
    observed = f"up to {max((_share('saturated', 'blocks')(m) for m in bad), default=0):.1%} of the block scales are at 448"
    return _finding(audit, "scales_saturated", "note", bad, observed, "one or a few blocks", why)


def _underflow(audit: Audit) -> Finding | None:
    bad = [m for m in audit.matrices if _share("smallest", "blocks")(m) > 0.01]
    why = "these blocks hold numbers too small for the global scale: their scale was raised to 2**-9 and their codes are mostly zero"
    observed = f"up to {max((_share('smallest', 'blocks')(m) for m in bad), default=0):.1%} of the block scales are the smallest there is"
    return _finding(audit, "scales_underflow", "note", bad, observed, "next to none", why)


def input_groups(audit: Audit) -> dict[tuple[int | None, str], list[MatrixStats]]:
    """(layer, "gate"/"up" as "first" or projection) -> the experts' matrices that have an input scale."""
    groups = defaultdict(list)
    for m in audit.matrices:
        if m.expert is not None and m.input_scale is not None and _usable(m.input_scale):
            groups[m.layer, "first" if m.projection in ("gate", "up", "gate_up") else m.projection].append(m)
    return dict(groups)


def _input_outliers(audit: Audit) -> list[Finding]:
    bad, worst_cost = [], 0.0
    for group in input_groups(audit).values():
        largest = max(m.input_scale for m in group)
        typical = float(np.median([m.input_scale for m in group]))
        cost = cost_of_maximum(largest / typical)
        if cost > 0.5:
            bad += [m for m in group if m.input_scale == largest]
            worst_cost = max(worst_cost, cost)
    why = (
        "kernels that quantise the tokens once take the largest input scale of the layer; for the others the block scales of the "
        "activations then fall into E4M3's subnormal range"
    )
    found = _finding(
        audit, "input_scale_outlier", "note", bad, f"costs a typical expert up to {worst_cost:.1f} dB", "under 0.5 dB", why, source=SGLANG
    )
    return [found] if found else []


@cache
def cost_of_maximum(ratio: float) -> float:
    """Decibels that Gaussian activations lose when quantised under a global scale ``ratio`` times their own."""
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
    g = x.abs().max() / FULL_SCALE
    own, shared = (sqnr_db(x, decode(encode(x, "modelopt", g * times), torch.float32)) for times in (1.0, ratio))
    return own - shared


@cache
def cost_of_collapsing(ratio: float) -> tuple[float, float]:
    """Decibels of signal over error that Gaussian up weights keep when one global scale serves gate and up (``collapse_globals``).

    ratio: up's global scale over gate's. First with gate's applied to both, then with the larger and the block scales of the other
    rounded again: the smaller half's error is given, whichever it is.
    """
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(2))
    up = encode(x)
    gate = Nvfp4(up.codes, up.scales, up.global_scale / ratio)
    first = sqnr_db(decode(up, torch.float32), decode(collapse_globals(gate, up, "first")[1], torch.float32))
    pairs = zip((gate, up), collapse_globals(gate, up, "maximum"), strict=True)
    larger = min(sqnr_db(decode(half, torch.float32), decode(together, torch.float32)) for half, together in pairs)
    return first, larger
