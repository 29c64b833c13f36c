"""FlashInfer's kernels that quantise activations: alone, after SwiGLU, after RMSNorm.

Facts: flashinfer 0.7.4 quantization/kernels/nvfp4_quantize.py, cute_dsl/rmsnorm_fp4quant.py, cute_dsl/add_rmsnorm_fp4quant.py.
"""

from importlib import import_module

import cutlass

from helpers.kernels.configurations import TOKENS, Recipe
from helpers.kernels.geometry import NVFP4_BLOCK, Block
from helpers.kernels.targets import Target

DTYPE = "bfloat16"
LAYOUTS = {"128x4": "SF_LAYOUT_128x4", "8x4": "SF_LAYOUT_8x4", "linear": "SF_LAYOUT_LINEAR"}
NORM_LAYOUTS = {"128x4": True, "linear": False}
NORM_SMALLEST = 64


def _quantiser():
    return import_module("flashinfer.quantization.kernels.nvfp4_quantize")


def _layout(name: str) -> int:
    return getattr(_quantiser(), LAYOUTS[name])


def quantize(block: Block, target: Target, layout: str) -> None:
    """Rows of the hidden size: what enters the first product."""
    _quantiser()._get_compiled_kernel_nvfp4(DTYPE, block.hidden, _layout(layout))


def quantize_per_token(block: Block, target: Target, layout: str) -> None:
    _quantiser()._get_compiled_kernel_nvfp4_per_token(DTYPE, block.hidden, _layout(layout))


def silu_mul_quantize(block: Block, target: Target, layout: str) -> None:
    """Rows of the intermediate size: what enters the second product."""
    _quantiser()._get_compiled_kernel_nvfp4(DTYPE, block.intermediate, _layout(layout), silu_and_mul=True)


def rmsnorm_quantize(block: Block, target: Target, layout: str) -> None:
    kernels = import_module("flashinfer.cute_dsl.rmsnorm_fp4quant")
    kernels._get_compiled_kernel(block.hidden, NVFP4_BLOCK, False, target.sm, "e4m3", NORM_LAYOUTS[layout])


def add_rmsnorm_quantize(block: Block, target: Target, layout: str) -> None:
    kernels = import_module("flashinfer.cute_dsl.add_rmsnorm_fp4quant")
    launch = kernels.AddRMSNormFP4QuantKernel._compute_launch_config(block.hidden, TOKENS, cutlass.BFloat16, target.sm)
    kernels._get_compiled_kernel(block.hidden, NVFP4_BLOCK, False, target.sm, "e4m3", NORM_LAYOUTS[layout], launch)


def _every(names):
    """A row of any multiple of 16 will do (the assertions at the head of each kernel), and a Block has no other."""
    return lambda block: dict.fromkeys(names, True)


def _norm(block: Block) -> dict[str, bool]:
    return dict.fromkeys(NORM_LAYOUTS, block.hidden >= NORM_SMALLEST)


RECIPES = {
    "nvfp4_quantize": Recipe(_every(LAYOUTS), quantize),
    "nvfp4_quantize_per_token": Recipe(_every(LAYOUTS), quantize_per_token),
    "silu_mul_quantize": Recipe(_every(LAYOUTS), silu_mul_quantize),
    "rmsnorm_quantize": Recipe(_norm, rmsnorm_quantize),
    "add_rmsnorm_quantize": Recipe(_norm, add_rmsnorm_quantize),
}
