"""Run the kernels that the machine at hand can run: plan the cases, work them in child processes, say what came out.

``run_command`` is ``python -m helpers kernels run``; notebook 06 and ``record`` use the same functions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from helpers.errors import InputError, UsageError, unknown
from helpers.kernels.geometry import NAMED, Block
from helpers.kernels.isolate import Outcome, run

if TYPE_CHECKING:
    from helpers.checkpoint import Checkpoint

TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
ROUTINGS = ("random", "skewed", "concentrated")
# Routings other than the random one are for correctness; one number of tokens of each size class is enough.
OTHER_TOKENS = (4, 64, 1024)
QUANTISE_ROWS = (1, 128, 4096)
LIMIT = 120.0  # seconds for one case: the longest compilation seen is 10, and a machine may be busy
SIZE_SECONDS = 2.5  # a case and what it compiles, on average over a recorded run, on a GPU
# The exact paths of FlashInfer's quantisers, so that bytes can be compared; see flashinfer_quantise.
ENVIRONMENT = {"FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH": "1", "FLASHINFER_DISABLE_VERSION_CHECK": "1"}


@dataclass(frozen=True)
class Gpu:
    """The first GPU that nvidia-smi lists. capability: as (9, 0)."""

    name: str
    capability: tuple[int, int]
    driver: str
    count: int

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


def gpu_here() -> Gpu | None:
    """None where there is no GPU, or no driver to ask. The GPU itself is not touched."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [[value.strip() for value in line.split(",")] for line in answer.splitlines() if line.count(",") == 2]
    if not lines:
        return None
    name, capability, driver = lines[0]
    return Gpu(name, tuple(int(part) for part in capability.split(".")), driver, len(lines))


def able() -> tuple[tuple[str, ...], str]:
    """(names of the kernels that can run here, why those that need a GPU cannot or ""). The plain ones run on any machine."""
    from helpers.kernels.runners import here
    from helpers.kernels.versions import here as platform
    from helpers.kernels.versions import run_blocker

    machine = platform()
    why = run_blocker(machine)
    return here(0 if why else machine.capability[0]), why


def numbers(text: str, most: int) -> tuple[int, ...]:
    """ "1,8,64" as numbers of tokens."""
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"tokens {text!r}: give whole numbers separated by commas, e.g. 1,8,64") from None
    if not found or not all(1 <= number <= most for number in found):
        raise UsageError(f"tokens {text!r}: give one number or more, each from 1 to {most}")
    return found


def blocks(text: str) -> tuple[Block, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMED:
            raise unknown("geometry", name, NAMED)
    return tuple(NAMED[name] for name in names)


# Plans ---------------------------------------------------------------------------------------------------------------


def moe_cases(
    block: Block, kernels: Sequence[str], tokens: Sequence[int], routings: Sequence[str], timed: bool, source: dict | None = None
) -> list[dict]:
    """All that is asked of one layer's experts, in an order in which cases share what they can. source: of stored experts."""
    from helpers.kernels.runners import RUNNERS

    kernels = [name for name in kernels if name in RUNNERS and not RUNNERS[name].reject(block)]
    common = {"block": asdict(block), **(source or {})}

    def case(question, kernel, count, routing, time=False):
        return {"question": question, "kernel": kernel, "tokens": count, "routing": routing, "time": time, **common}

    found = []
    for routing in routings:
        for count in tokens if routing == routings[0] else [t for t in tokens if t in OTHER_TOKENS]:
            able = [name for name in kernels if count <= RUNNERS[name].tokens]
            found += [case("run", name, count, routing, timed and RUNNERS[name].graphs and routing == routings[0]) for name in able]
    for question, most in (("experts", 512), ("faults", 8)):
        for name in kernels:
            fitting = [count for count in tokens if count <= min(most, RUNNERS[name].tokens)]
            if fitting:
                found.append(case(question, name, max(fitting), routings[0]))
    return found


def quantise_cases(hidden: int, kernels: Sequence[str], timed: bool, rows: Sequence[int] = QUANTISE_ROWS) -> list[dict]:
    from helpers.kernels.runners import QUANTISE

    return [
        {"question": "quantise", "kernel": name, "hidden": hidden, "tokens": count, "time": timed}
        for name in kernels
        if name in QUANTISE
        for count in rows
    ]


def everything(kernels: Sequence[str], blocks: Sequence[Block], tokens: Sequence[int]) -> list[dict]:
    """What a record holds: the kernels on synthetic experts of each geometry, under every routing, timed; and the ceilings."""
    found = [{"question": "ceilings"}]
    for hidden in sorted({block.hidden for block in blocks}):
        found += quantise_cases(hidden, kernels, True)
    for block in blocks:
        found += moe_cases(block, kernels, tokens, ROUTINGS, True)
    return found


def stored_source(checkpoint: Checkpoint, layer: int | None, tokens: Sequence[int], tp: int = 1) -> tuple[Block, dict]:
    """(block, source) for ``moe_cases``: as many of the layer's experts as the largest number of tokens can reach, and at least top-k.

    layer: None for the first with NVFP4 experts. InputError where there are none.
    """
    from helpers.kernels.geometry import block_of

    if checkpoint.tensors is None:
        raise InputError(f"{checkpoint.name}: only its configuration is here; name a folder that has its *.safetensors files")
    from helpers.nvfp4.audit.plan import plan

    by_layer: dict[int, set[int]] = {}
    for job in plan(checkpoint):
        if job.expert is not None and job.layer is not None and job.packed_axis == -1:
            by_layer.setdefault(job.layer, set()).add(job.expert)
    if not by_layer:
        raise InputError(f"{checkpoint.name}: no layer has NVFP4 experts in tensors of their own")
    layer = min(by_layer) if layer is None else layer
    if layer not in by_layer:
        raise InputError(f"{checkpoint.name}: layer {layer} has no NVFP4 experts; layers that have: {sorted(by_layer)[:12]}")
    whole = block_of(checkpoint, tp=tp)
    hit = tuple(sorted(by_layer[layer])[: max(whole.top_k, max(tokens) * whole.top_k)])
    block = Block(whole.name, whole.hidden, whole.intermediate, len(hit), whole.top_k, whole.activation)
    return block, {"checkpoint": str(checkpoint.path), "layer": layer, "experts": list(hit), "tp": tp}


def own_cases(checkpoint: Checkpoint, kernels: Sequence[str], tokens: Sequence[int], timed: bool, tp: int = 1) -> tuple[list[dict], str]:
    """(cases of a checkpoint's own experts, "") or ([], why there are none)."""
    try:
        block, source = stored_source(checkpoint, None, tokens, tp)
    except (InputError, UsageError) as error:
        return [], str(error)
    return moe_cases(block, kernels, tokens, ("random", "concentrated"), timed, source), ""


# Results -------------------------------------------------------------------------------------------------------------


def results(cases: Sequence[dict], limit: float = LIMIT) -> Iterator[dict]:
    """One a case, as they come: the case, its outcome, and whether it is ``right``."""
    for outcome in run("helpers.kernels.cases:work", cases, limit=limit, env=ENVIRONMENT):
        yield result(cases[outcome.case], outcome)


def result(case: dict, outcome: Outcome) -> dict:
    """Flat, plain JSON types. state: see isolate. right: done and accepted, and agreeing with every other kernel of its precision."""
    shown = {name: case[name] for name in ("question", "kernel", "tokens", "routing", "hidden") if name in case}
    value = outcome.value or {}
    agree = all(found["accepted"] for found in value.get("against", {}).values())
    right = outcome.state == "done" and value.get("accepted", True) and agree
    block = {"block": case["block"]["name"]} if "block" in case else {}
    reason = {"reason": outcome.reason} if outcome.reason else {}
    return {**block, **shown, "state": outcome.state, "right": right, "seconds": round(outcome.seconds, 2), **reason, **value}


def budget(cases: Sequence[dict]) -> str:
    """One line to show before a run begins."""
    sizes = {(case.get("kernel"), json.dumps(case.get("block")), case.get("tokens")) for case in cases}
    compiled = any(case.get("time") for case in cases)
    expected = f": about {max(1, round(len(sizes) * SIZE_SECONDS / 60))} min, most of it compilation" if compiled else ""
    return f"{len(cases)} cases of {len(sizes)} sizes{expected}"


def line(found: dict) -> str:
    """One result for a terminal."""
    what = " ".join(str(found[name]) for name in ("block", "kernel", "question") if name in found)
    size = f"T={found['tokens']}" if "tokens" in found else ""
    parts = [f"cosine {found['cosine']:.6f}"] if "cosine" in found else []
    parts += [f"{found['codes_off']} of {found['codes']} code bytes off"] if "codes_off" in found else []
    parts += [f"{found['us']:.1f} us"] if "us" in found else []
    parts += [
        f"{found[name]:.{digits}f} {unit}" for name, digits, unit in (("tb_s", 2, "TB/s"), ("tflop_s", 0, "TFLOP/s")) if name in found
    ]
    mark = "ok   " if found["right"] else "WRONG" if found["state"] == "done" else found["state"]
    return f"{mark} {what} {size} {found.get('routing', '')} {', '.join(parts) or found.get('reason', '')}".rstrip()


# Command line --------------------------------------------------------------------------------------------------------


def add_run_arguments(parser) -> None:
    parser.add_argument("--checkpoint", metavar="NAME", help="run the experts of this checkpoint (bundled name or folder)")
    parser.add_argument("--layer", type=int, metavar="N", help="decoder layer of the checkpoint (default: the first with NVFP4 experts)")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="take one tensor-parallel rank's share of each expert")
    parser.add_argument("--blocks", default="", metavar="NAME,…", help=f"synthetic experts of a geometry: {', '.join(NAMED)}")
    parser.add_argument("--kernels", default="", metavar="NAME,…", help="default: all that run on this machine")
    parser.add_argument("--tokens", default="1,8", metavar="N,…", help="numbers of tokens, 1 to 8192 (default: 1,8)")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for one case, compilation included")
    parser.add_argument("--no-timing", action="store_true", help="only whether it is right")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_command(args) -> int:
    """0 when every result is right, 1 otherwise."""
    cases = command_cases(args)
    if not args.json:
        print(budget(cases), file=sys.stderr)
    found = []
    for each in results(cases, args.limit):
        found.append(each)
        if not args.json:
            print(line(each), flush=True)
    gpu = gpu_here()
    if args.json:
        print(json.dumps({"gpu": asdict(gpu) if gpu else None, "results": found}))
    return 0 if all(each["right"] for each in found) else 1


def command_cases(args) -> list[dict]:
    from helpers.kernels.inputs import MOST_TOKENS
    from helpers.kernels.runners import chosen

    if bool(args.checkpoint) == bool(args.blocks):
        raise UsageError("name either --checkpoint or --blocks")
    possible, why = able()
    kernels, tokens = chosen(args.kernels, possible, why), numbers(args.tokens, MOST_TOKENS)
    timed = not why and not args.no_timing
    if args.checkpoint:
        from helpers.checkpoint import open_checkpoint

        block, source = stored_source(open_checkpoint(args.checkpoint), args.layer, tokens, args.tp)
        found = moe_cases(block, kernels, tokens, ("random",), timed, source)
    else:
        found = [case for block in blocks(args.blocks) for case in moe_cases(block, kernels, tokens, ("random",), timed)]
    if not found:
        raise UsageError("no kernel takes these tokens and this geometry; see `python -m helpers kernels list`")
    return found
