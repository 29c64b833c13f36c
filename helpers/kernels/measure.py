"""How fast, against what this GPU can do: times by FlashInfer's own benchmark functions, ceilings measured in the same run.

A CUDA graph is replayed, so that launches cost nothing; the L2 cache is cold, because every call in the graph has its own routing and
so its own experts, or its own copy of the inputs.
"""

import subprocess
from collections.abc import Callable, Sequence
from statistics import median

import torch

from helpers.kernels.geometry import Block
from helpers.kernels.inputs import Routing

BITS_A_WEIGHT = 4.5
COLD = 4  # times the L2 cache that the calls of one graph read together, at least
MOST_CALLS = 16


def microseconds(call: Callable, arguments: tuple = ()) -> float:
    """Median time of one call. arguments: tensors that the call gets; copies of them are rotated, so that each call reads cold ones."""
    from flashinfer.testing import bench_gpu_time_with_cudagraph

    times = bench_gpu_time_with_cudagraph(
        call, dry_run_iters=2, repeat_iters=10, num_iters_within_graph=10, input_args=arguments, cold_l2_cache=bool(arguments)
    )
    return 1e3 * median(times)


def moe_microseconds(call: Callable, x: torch.Tensor, routings: Sequence[Routing]) -> float:
    """Median time of one call, over routings that take turns."""
    from flashinfer.testing import bench_gpu_time_with_cudagraph

    def turn():
        for routing in routings:
            call(x, routing.ids, routing.weights)

    times = bench_gpu_time_with_cudagraph(turn, dry_run_iters=1, repeat_iters=7, num_iters_within_graph=2, cold_l2_cache=False)
    return 1e3 * median(times) / len(routings)


def turns(block: Block, hit: int, cache: int) -> int:
    """How many routings take turns, so that together they read ``COLD`` times the cache, or every expert."""
    once = hit * expert_bytes(block)
    return int(max(1, min(MOST_CALLS, -(-COLD * cache // once), -(-block.experts // hit))))


def expert_bytes(block: Block) -> float:
    return (3 if block.gated else 2) * block.hidden * block.intermediate * BITS_A_WEIGHT / 8


def traffic(block: Block, tokens: int, hit: float) -> tuple[float, float]:
    """(bytes, floating-point operations) that the layer needs at least: each expert that is hit read once, tokens in and out once."""
    flops = tokens * block.top_k * 2 * (3 if block.gated else 2) * block.hidden * block.intermediate
    return hit * expert_bytes(block) + 4 * tokens * block.hidden, flops


def ceilings() -> dict[str, float]:
    """copy_tb_s: read and written, of 2 GiB, after half a second of it, because an idle GPU's clocks are low. bf16_tflop_s: of a product
    of 8192 x 8192 random matrices, a few of them, because many would meet the power limit, which a layer's kernels do not.
    """
    from flashinfer.testing import bench_gpu_time_with_cuda_event

    source = torch.randint(0, 256, (1 << 31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = bench_gpu_time_with_cuda_event(lambda: target.copy_(source), dry_run_time_ms=500, repeat_iters=20, cold_l2_cache=False)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = bench_gpu_time_with_cuda_event(lambda: torch.mm(a, b), dry_run_iters=3, repeat_iters=10, cold_l2_cache=False)
    return {"copy_tb_s": 2 * (1 << 31) / median(copy) / 1e9, "bf16_tflop_s": 2 * 8192**3 / median(product) / 1e9}


def clocks() -> dict[str, str]:
    """What nvidia-smi says at this moment; empty where it cannot be asked."""
    fields = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu", "power.draw")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (value.strip() for value in answer.split(",")), strict=False))
