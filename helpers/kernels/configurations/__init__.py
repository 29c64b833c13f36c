"""How each kernel is compiled without a GPU: one module a family of kernels, one recipe a kernel.

The modules import FlashInfer and the CuTe DSL when they are imported themselves, so `recipe` imports only the one it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from helpers.errors import unknown
from helpers.kernels.geometry import Block
from helpers.kernels.targets import Target

# Tokens that a compile stands for where their number is part of the kernel: a busy decode step.
TOKENS = 64


@dataclass(frozen=True)
class Recipe:
    """tactics(block) names the variants the library has for a block of experts, in the library's order, and says of each whether the
    library accepts that geometry. build(block, target, tactic) compiles one, or raises what the library or the assembler raises.
    """

    tactics: Callable[[Block], dict[str, bool]]
    build: Callable[[Block, Target, str], None]


FAMILIES = {
    "gather_grouped_gemm": "blackwell_moe",
    "grouped_gemm_finalize": "blackwell_moe",
    "cutedsl_moe_wrapper": "blackwell_moe",
    "cutedsl_moe_w4a16": "blackwell_moe",
    "cutedsl_moe_swap_ab": "blackwell_moe",
    "grouped_gemm_masked": "blackwell_moe",
    "mm_fp4_cute_dsl": "dense",
    "mm_fp4_cute_dsl_sm12x": "dense",
    "mm_fp4_low_latency": "dense",
    "mm_fp4_b12x": "dense",
    "mm_bf16_fp4": "dense",
    "mm_bf16_fp4_sm12x": "dense",
    "b12x_w4a16_moe": "sm12x_moe",
    "b12x_w4a4_moe": "sm12x_moe",
    "run_moe_w4a16": "sm12x_moe",
    "run_moe_w4a4": "sm12x_moe",
    "frost_w4a16_moe": "frost",
    "nvfp4_quantize": "quantise",
    "nvfp4_quantize_per_token": "quantise",
    "silu_mul_quantize": "quantise",
    "rmsnorm_quantize": "quantise",
    "add_rmsnorm_quantize": "quantise",
}


def recipe(kernel: str) -> Recipe:
    """ImportError when the library that is installed has not got the kernel."""
    if kernel not in FAMILIES:
        raise unknown("kernel", kernel, FAMILIES)
    return import_module(f"{__name__}.{FAMILIES[kernel]}").RECIPES[kernel]
