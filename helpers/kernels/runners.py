"""Which kernel runs where, what it rounds, and how to call it: one entry a kernel of the catalogue that takes part in ``run``.

A MoE kernel is prepared from a layer's experts and then called with tokens and a routing; see ``flashinfer_moe``. Two kernels are
plain torch and run on a CPU too, so that everything here can be tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from helpers.errors import UsageError, unknown
from helpers.kernels import flashinfer_moe, torch_moe
from helpers.kernels.checks import Roundings
from helpers.kernels.flashinfer_quantise import QUANTISERS
from helpers.kernels.geometry import Block
from helpers.nvfp4.moe import Precision

W4A16 = Precision("w4a16")
W4A4 = Precision("w4a4", "flashinfer_exact")
SM90, SM100, SM120 = (9,), (10,), (12,)
CPU = (0,)


@dataclass(frozen=True)
class Runner:
    """kernel: its name in the catalogue. majors: compute capabilities it is run on, 0 for a CPU. prepare(experts) -> call. tokens: the
    most it takes. graphs: it can be captured in a CUDA graph. maps: prepare also takes an expert_map, for one of several ranks.
    roundings(tokens): see ``checks``. reject(block): why it cannot take this geometry, or "". overhead: bytes it needs beside the
    experts, as a multiple of them.
    """

    kernel: str
    majors: tuple[int, ...]
    precision: Precision
    prepare: Callable
    roundings: Callable[[int], Roundings]
    tokens: int = 8192
    graphs: bool = True
    maps: bool = False
    reject: Callable[[Block], str] = lambda block: ""
    overhead: float = 2.0


def _plain(kernel: str, precision: Precision) -> Runner:
    prepare = partial(torch_moe.prepare, quantised=precision.kind == "w4a4")
    majors = (*CPU, 8, *SM90, *SM100, *SM120)
    return Runner(kernel, majors, precision, prepare, lambda tokens: Roundings(), graphs=False, maps=True, overhead=0.1)


def _b12x_roundings(tokens: int) -> Roundings:
    # moe_w4a16_kernel.py: both products pass through bfloat16, and so does silu before it is multiplied (_run_activation); the
    # router's weight is bfloat16 and multiplied in bfloat16 (_drain_output_smem); up to 4 tokens, partial sums are added by bfloat16
    # atomics (_TC_DECODE_MAX_M), above in float32.
    return Roundings(preactivation=True, activated=True, contribution=3, sums=tokens <= 4)


def _multiples(hidden: int, intermediate: int) -> Callable[[Block], str]:
    def reject(block: Block) -> str:
        bad = [f"{n} {v}" for n, v, m in (("hidden", block.hidden, hidden), ("intermediate", block.intermediate, intermediate)) if v % m]
        return f"{' and '.join(bad)} not a multiple of {hidden} and {intermediate}" if bad else ""

    return reject


def _w4a4_roundings(tokens: int) -> Roundings:
    # The second product's output is added to the result in bfloat16, a reduction a contribution.
    return Roundings(contribution=1, sums=True)


RUNNERS = {
    runner.kernel: runner
    for runner in (
        _plain("torch_w4a16", W4A16),
        _plain("torch_w4a4", W4A4),
        Runner(
            "b12x_w4a16_moe", (*SM90, *SM120), W4A16, flashinfer_moe.b12x_w4a16, _b12x_roundings, maps=True, reject=_multiples(128, 128)
        ),
        Runner(
            "frost_w4a16_moe",
            (*SM90, *SM100, *SM120),
            W4A16,
            flashinfer_moe.frost,
            # backends/frost_low_latency: bfloat16 before the activation, and each expert's output; the combination is float32.
            lambda tokens: Roundings(preactivation=True, contribution=1),
            tokens=8,
            reject=_multiples(128, 32),
        ),
        Runner("cutedsl_moe_wrapper", SM100, W4A4, flashinfer_moe.cutedsl_wrapper, _w4a4_roundings, reject=_multiples(128, 128)),
        Runner(
            "grouped_gemm_masked",
            SM100,
            W4A4,
            flashinfer_moe.masked,
            # Both products come back in bfloat16; they are added up in float32.
            lambda tokens: Roundings(preactivation=True, contribution=1),
            tokens=1024,
            reject=_multiples(128, 128),
        ),
        Runner("b12x_w4a4_moe", SM120, W4A4, flashinfer_moe.b12x_w4a4, _w4a4_roundings, reject=_multiples(128, 128)),
    )
}
QUANTISE = {quantiser.name: quantiser for quantiser in QUANTISERS}
NAMES = (*RUNNERS, *QUANTISE)


def here(major: int) -> tuple[str, ...]:
    """Names of what runs on a GPU of this major compute capability, 0 for a CPU."""
    moe = tuple(name for name, runner in RUNNERS.items() if major in runner.majors)
    return moe + (tuple(QUANTISE) if major >= 9 else ())


def chosen(names: str, possible: tuple[str, ...], why: str = "") -> tuple[str, ...]:
    """Comma separated, "" for all that are possible here. UsageError for an unknown one, or for one that is not, with the reason."""
    picked = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in picked:
        if name not in NAMES:
            raise unknown("kernel", name, NAMES)
        if name not in possible:
            raise UsageError(f"{name} cannot run here{f' ({why})' if why else ''}; what can: {', '.join(possible)}")
    return picked or possible
