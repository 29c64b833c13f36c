"""One case of a run, as the child process of ``isolate`` works it: ``work(case)`` returns plain JSON types.

A case is one kernel on one input, and one question: "run" (right, the same every time, agreeing with the other kernels, and how
fast), "experts" (each expert by itself), "faults" (what a loader can get wrong is noticed), "quantise" or "ceilings". What cases in
a row have in common (the experts, a kernel prepared for them, the reference) is kept from one to the next.
"""

import time
from dataclasses import replace
from functools import lru_cache

import torch

from helpers.errors import InputError
from helpers.kernels import checks, inputs, measure
from helpers.kernels.geometry import Block
from helpers.kernels.runners import QUANTISE, RUNNERS
from helpers.nvfp4.codec import Nvfp4

GIB = 1 << 30
REPEATS = 2
# Under exact division only the approximations of exp and rsqrt can move a scale or a code, and then this share of them at most.
NEIGHBOURS = 1e-3


def work(case: dict) -> dict:
    prepare_process()
    found = {"run": _run, "experts": _experts, "faults": _faults, "quantise": _quantise, "ceilings": _ceilings}[case["question"]](case)
    return {name: _short(value) for name, value in found.items()}


def _short(value):
    return float(f"{value:.6g}") if isinstance(value, float) else value


@lru_cache(maxsize=1)
def prepare_process() -> None:
    """Before the first product, and before the first compile of a kernel."""
    torch.set_float32_matmul_precision("highest")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (10, 0):
        from helpers.kernels import e2m1_sm90

        e2m1_sm90.install()


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# Memory -------------------------------------------------------------------------------------------------------------


def needed_bytes(block: Block, tokens: int, overhead: float) -> float:
    """An estimate from above: experts and a kernel's own copies of them, a reference expert in float32 twice, tokens in float32."""
    experts = block.experts * measure.expert_bytes(block) * (1 + overhead)
    one = 2 * 4 * 3 * block.hidden * block.intermediate
    return experts + one + tokens * (10 * 4 * block.hidden + block.top_k * 8 * 4 * block.intermediate)


def free_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def check_memory(block: Block, tokens: int, overhead: float, held: int = 0) -> None:
    """InputError before anything is allocated. held: bytes of the estimate that are allocated already."""
    needed, free = needed_bytes(block, tokens, overhead) - held, free_bytes()
    if needed > free:
        raise InputError(
            f"{block} with {tokens} tokens needs about {needed / GIB:.1f} GiB and {free / GIB:.1f} are free; "
            "take fewer experts or tokens, or a checkpoint's share under more tensor or expert parallelism"
        )


# What cases share -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _synthetic(block: Block) -> inputs.Experts:
    _prepared.cache_clear()
    _expected.cache_clear()
    return inputs.synthetic(block, device())


@lru_cache(maxsize=1)
def _stored(path: str, layer: int, hit: tuple[int, ...], tp: int) -> inputs.Experts:
    from helpers.checkpoint import open_checkpoint

    _prepared.cache_clear()
    _expected.cache_clear()
    return inputs.from_checkpoint(open_checkpoint(path), layer, hit, device(), tp)


@lru_cache(maxsize=8)
def _prepared(kernel: str, experts: inputs.Experts):
    return RUNNERS[kernel].prepare(experts)


@lru_cache(maxsize=6)
def _expected(experts: inputs.Experts, tokens: int, kind: str, alone: bool, precision, roundings: checks.Roundings):
    x, routing = _given(experts, tokens, kind)
    return checks.layer(experts, x, checks.one_expert_a_token(routing) if alone else routing, precision, roundings)


def _given(experts: inputs.Experts, tokens: int, kind: str, seed: int = 0):
    return inputs.tokens(tokens, experts.block, device(), seed), inputs.routing(kind, tokens, experts.block, device(), seed + 1)


def _reference(runner, experts, case, alone=False) -> checks.Reference:
    roundings = runner.roundings(case["tokens"])
    exact = replace(roundings, contribution=0, sums=False)  # the rest only widens the tolerance
    expected = _expected(experts, case["tokens"], case["routing"], alone, runner.precision, exact)
    return checks.reference(expected, roundings, experts.block.top_k)


def _setting(case: dict):
    """(runner, experts) of a case; InputError where the kernel cannot take it."""
    block, runner = Block(**case["block"]), RUNNERS[case["kernel"]]
    reason = runner.reject(block) or (f"takes at most {runner.tokens} tokens" if case["tokens"] > runner.tokens else "")
    if reason:
        raise InputError(f"{runner.kernel} rejects {block} with {case['tokens']} tokens: {reason}")
    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    check_memory(block, case["tokens"], runner.overhead, held)
    if "checkpoint" not in case:
        return runner, _synthetic(block)
    return runner, _stored(case["checkpoint"], case["layer"], tuple(case["experts"]), case["tp"])


# Questions ------------------------------------------------------------------------------------------------------------

# Outputs of the current input, for the kernels that follow: (experts, tokens, routing) -> kernel -> (precision, output, reference).
_others: dict[tuple, dict] = {}


def _run(case: dict) -> dict:
    runner, experts = _setting(case)
    x, routing = _given(experts, case["tokens"], case["routing"])
    expected = _reference(runner, experts, case)
    began = time.perf_counter()
    call = _prepared(runner.kernel, experts)
    output = call(x, routing.ids, routing.weights)
    _synchronize()
    found = {"first_call_s": time.perf_counter() - began, "hit": routing.hit, **checks.errors(output, expected)}
    found |= _again(call, x, routing, output, REPEATS if runner.graphs else 1)
    found |= _agreement(case, runner, experts, output, expected)
    if case["time"]:
        found |= _speed(call, experts, x, case, routing.hit)
    return found


def _again(call, x, routing, output, times: int) -> dict:
    """Run it again: bit for bit the same, or how far off at most, in units of the output's root mean square."""
    others = [call(x, routing.ids, routing.weights) for _ in range(times)]
    moved = max(float((other.float() - output.float()).abs().max()) for other in others)
    return {"bitwise": all(torch.equal(other, output) for other in others), "moved": moved / float(output.float().square().mean().sqrt())}


def _agreement(case, runner, experts, output, expected) -> dict:
    """Against every kernel of the same precision that had this input before."""
    key = (id(experts), case["tokens"], case["routing"])
    if key not in _others:
        _others.clear()
    past = _others.setdefault(key, {})
    same = {kernel: rest for kernel, (precision, *rest) in past.items() if precision == runner.precision.kind}
    past[runner.kernel] = (runner.precision.kind, output, expected)
    return {"against": {kernel: checks.between(output, other, expected, its) for kernel, (other, its) in same.items()}}


def _speed(call, experts, x, case, hit) -> dict:
    block = experts.block
    count = measure.turns(block, hit, torch.cuda.get_device_properties(0).L2_cache_size)
    routings = [inputs.routing(case["routing"], case["tokens"], block, device(), seed) for seed in range(1, count + 1)]
    us = measure.moe_microseconds(call, x, routings)
    nbytes, flops = measure.traffic(block, case["tokens"], sum(r.hit for r in routings) / count)
    return {"us": us, "bytes": nbytes, "flops": float(flops), "tb_s": nbytes / us / 1e6, "tflop_s": flops / us / 1e6, "turns": count}


def _experts(case: dict) -> dict:
    runner, experts = _setting(case)
    x, routing = _given(experts, case["tokens"], case["routing"])
    alone = checks.one_expert_a_token(routing)
    output = _prepared(runner.kernel, experts)(x, alone.ids, alone.weights)
    expected = _reference(runner, experts, case, alone=True)
    found = checks.per_expert(output, expected, alone, runner.roundings(case["tokens"]))
    return found | {"accepted": found["accepted"] == found["experts"], "accepted_experts": found["accepted"]}


def _faults(case: dict) -> dict:
    """Which faults the check notices. The reference is of the experts as they are; the kernel gets them with the fault."""
    runner, experts = _setting(case)
    x, routing = _given(experts, case["tokens"], case["routing"])
    expected = _reference(runner, experts, case)
    caught = {}
    for fault in checks.FAULTS:
        if fault == "gate and up swapped" and experts.gate is None:
            continue
        output = runner.prepare(checks.inject(fault, experts))(x, routing.ids, routing.weights)
        caught[fault] = not checks.errors(output, expected)["accepted"]
    return {"caught": caught, "accepted": all(caught.values())}


def _quantise(case: dict) -> dict:
    quantiser = QUANTISE[case["kernel"]]
    given = quantiser.inputs(case["tokens"], case["hidden"], device(), 0)
    numbers = quantiser.numbers(*given)
    multiplier = 2688.0 / float(numbers.abs().max())
    expected = quantiser.expected(given, multiplier)
    began = time.perf_counter()
    codes, scales = quantiser.run(given, multiplier)
    _synchronize()
    found = {"first_call_s": time.perf_counter() - began, **quantised(codes, scales, expected, quantiser)}
    if case["time"]:
        us = measure.microseconds(lambda *args: quantiser.run(args, multiplier), given)
        nbytes = sum(part.nbytes for part in given) + codes.nbytes + expected.scales.nbytes
        found |= {"us": us, "bytes": nbytes, "tb_s": nbytes / us / 1e6}
    return found


def quantised(codes, scales, expected: Nvfp4, quantiser) -> dict:
    """Bytes that differ from our own encoding: none may where the kernel's arithmetic is exact. Where exp or rsqrt is approximate, few
    scales may, and one that does takes the eight code bytes of its block along.
    """
    ours = quantiser.laid_out(expected.scales)
    codes, scales = codes.view(expected.codes.shape), scales.flatten()[: ours.numel()].view(ours.shape)
    off_codes, off_scales = int((codes != expected.codes).sum()), int((scales != ours).sum())
    found = {"codes_off": off_codes, "codes": expected.codes.numel(), "scales_off": off_scales, "scales": ours.numel()}
    if quantiser.exact:
        return found | {"accepted": not off_codes and not off_scales}
    few = off_scales <= max(1, NEIGHBOURS * ours.numel()) and off_codes <= 8 * off_scales + NEIGHBOURS * expected.codes.numel()
    return found | {"accepted": few}


def _ceilings(case: dict) -> dict:
    return measure.ceilings()
