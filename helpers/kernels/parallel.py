"""One layer's experts over several processes: expert parallel or tensor parallel, through the same kernels, summed by an all-reduce.

NCCL on GPUs, one each; gloo on a CPU. Each rank holds its experts (whole) or its slice of every expert (gate and up by rows, down by
columns) and nothing else; what a token needs of other ranks' experts, they contribute. Any number of ranks that divides the layer.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from helpers.errors import UsageError, unknown
from helpers.kernels import checks, inputs
from helpers.kernels.cases import device, prepare_process
from helpers.kernels.geometry import Block
from helpers.kernels.inputs import Experts
from helpers.kernels.runners import RUNNERS
from helpers.nvfp4.layouts import column_slice, expert_slice, row_slice
from helpers.nvfp4.moe import HALF_BF16

MODES = ("ep", "tp")
REPEATS = 20


def share(experts: Experts, mode: str, ranks: int, rank: int) -> Experts:
    """What one rank holds. UsageError where the ranks do not divide the experts or their width."""
    if mode not in MODES:
        raise unknown("way to share experts", mode, MODES)
    if mode == "ep":
        gate, up, down = (None if part is None else expert_slice(part, ranks, rank) for part in (experts.gate, experts.up, experts.down))
        numbers = tuple(range(rank * len(experts) // ranks, (rank + 1) * len(experts) // ranks))
        inputs_ = (experts.first_input[list(numbers)], experts.second_input[list(numbers)])
        return Experts(replace(experts.block, experts=len(numbers)), gate, up, down, *inputs_, numbers)
    gate = None if experts.gate is None else row_slice(experts.gate, ranks, rank)
    up, down = row_slice(experts.up, ranks, rank), column_slice(experts.down, ranks, rank)
    return replace(experts, block=replace(experts.block, intermediate=up.shape[-2]), gate=gate, up=up, down=down)


def expert_map(held: Experts, count: int, where: str) -> torch.Tensor:
    """int32 [count]: the position of each expert of the model here, -1 for those of other ranks."""
    found = torch.full((count,), -1, dtype=torch.int32)
    found[list(held.numbers)] = torch.arange(len(held), dtype=torch.int32)
    return found.to(where)


def run(block: Block, mode: str, ranks: int, kernels: Sequence[str], tokens: Sequence[int], seed: int = 0) -> list[dict]:
    """One result a kernel and number of tokens: against the reference, against the same kernel on one GPU, and times on a GPU."""
    for kernel in kernels:
        if mode == "ep" and not RUNNERS[kernel].maps:
            raise UsageError(f"{kernel} cannot leave out experts that other ranks hold; kernels that can: {', '.join(_mapping())}")
    if torch.cuda.is_available() and torch.cuda.device_count() < ranks:
        raise UsageError(f"{ranks} ranks need {ranks} GPUs, and {torch.cuda.device_count()} are here")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (mode, ranks, tuple(kernels), tuple(tokens), asdict(block), seed, folder)
        processes.spawn(_rank, arguments, nprocs=ranks)
        return json.loads((Path(folder) / "results.json").read_text())


def _mapping() -> list[str]:
    return [name for name, runner in RUNNERS.items() if runner.maps]


def _rank(rank: int, mode, ranks, kernels, tokens, block, seed, folder) -> None:
    where = device()
    if where == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    prepare_process()
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("nccl" if where == "cuda" else "gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    try:
        found = list(_results(rank, mode, ranks, kernels, tokens, Block(**block), seed, where))
        if rank == 0:
            (Path(folder) / "results.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def _results(rank, mode, ranks, kernels, tokens, block, seed, where) -> Iterator[dict]:
    whole = inputs.synthetic(block, where, seed)  # the same on every rank; rank 0 keeps it for the comparison
    held = share(whole, mode, ranks, rank)
    if rank:
        whole = None
    for kernel in kernels:
        runner = RUNNERS[kernel]
        prepared = {} if mode == "tp" else {"expert_map": expert_map(held, block.experts, where)}
        call = runner.prepare(held, **prepared)
        alone = runner.prepare(whole) if whole is not None else None
        for count in (count for count in tokens if count <= runner.tokens):
            x, routing = inputs.tokens(count, block, where, seed), inputs.routing("random", count, block, where, seed + 1)

            def step(call=call, x=x, routing=routing):
                total = call(x, routing.ids, routing.weights).float()
                dist.all_reduce(total)
                return total.bfloat16()

            total = step()
            partial = call(x, routing.ids, routing.weights).float().square()
            dist.all_reduce(partial)
            found = {"mode": mode, "ranks": ranks, "block": block.name, "kernel": kernel, "tokens": count}
            if where == "cuda":
                found |= {"us": _microseconds(step), "us_local": _microseconds(lambda c=call, x=x, r=routing: c(x, r.ids, r.weights))}
            if alone is not None:
                yield found | _compared(runner, whole, x, routing, total, partial, alone)
            dist.barrier()


def _compared(runner, whole, x, routing, total, partial, alone) -> dict:
    """partial: the sum of the squares of what each rank sent, because each of those was rounded to bfloat16 once more."""
    roundings = runner.roundings(len(x))
    expected = checks.layer(whole, x, routing, runner.precision, replace(roundings, contribution=0, sums=False))
    single = alone(x, routing.ids, routing.weights)
    one = checks.reference(expected, roundings, whole.block.top_k)
    shared = checks.Reference(one.output, (one.sigma.square() + partial * (HALF_BF16**2 / 3)).sqrt())
    found = checks.errors(total, shared)
    against = checks.between(total, single, shared, one)
    if total.is_cuda:
        found["us_one"] = _microseconds(lambda: alone(x, routing.ids, routing.weights))
    return found | {"against_one": against, "right": found["accepted"] and against["accepted"]}


def _microseconds(call) -> float:
    """Mean over ``REPEATS`` calls in a row, by events: an all-reduce keeps the ranks in step."""
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPEATS):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / REPEATS


def everything(blocks: Sequence[Block], ranks: int, tokens: Sequence[int] = (1, 8, 64, 1024)) -> list[dict]:
    """Both ways, through every kernel that runs on this GPU and can take part, for each block that the ranks divide. Without the plain
    ones, whose times say nothing.
    """
    major = torch.cuda.get_device_capability()[0]
    kernels = [name for name, runner in RUNNERS.items() if major in runner.majors and runner.maps and runner.graphs]
    found = []
    for block in blocks:
        for mode, size in (("ep", block.experts), ("tp", block.intermediate)):
            able = [k for k in kernels if mode == "ep" or not RUNNERS[k].reject(replace(block, intermediate=size // ranks))]
            if size % ranks == 0 and able:
                found += run(block, mode, ranks, able, tokens)
    return found
