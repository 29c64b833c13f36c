"""Four ways in use to turn numbers into NVFP4. They do not agree with each other, so each is held to its own implementation.

All start from the same idea: a tensor's largest magnitude should land on 6 (E2M1) times 448 (E4M3), so

    global scale = amax / (6 * 448),   block scale = E4M3(block amax / 6 / global scale),   code = E2M1(x / (block scale * global scale))

They differ in whether the global scale or its reciprocal is stored, in the order of the roundings, in what a block of zeros and a
block too small for E4M3 get, and in the sign of a zero. A recipe is data: what differs, as functions over float32 tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.errors import unknown
from helpers.nvfp4.elements import E2M1_MAX, E4M3_MAX, E4M3_TINY, e4m3_encode

FULL_SCALE = E2M1_MAX * E4M3_MAX
FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Recipe:
    """One arithmetic of NVFP4.

    name: as used everywhere. source: the implementation it is bit-exact against.
    stores_reciprocal: the stored global scale is 2688/amax (multiplied in on encode) rather than amax/2688 (multiplied in on decode).
    global_scale(amax): float32 global scale from the largest magnitude, given in the input's dtype, any shape.
    row_scale(amax): the same where every row is its own tensor (per-token activations).
    block_scale(amax, g): float8_e4m3fn scales from block maxima (input's dtype) and the global scale.
    factor(scale, g, amax): float32 that x is divided by (divides) or multiplied with, from the decoded block scale.
    divides: see factor.
    signs_zero: an input of -0.0 becomes code 8; otherwise code 0. (A negative number that rounds to zero is code 8 everywhere.)
    value(v, scale, g): the decoded number from the code's value v, all float32.
    decodes_signed_zero: code 8 decodes to -0.0; otherwise to +0.0.
    """

    name: str
    source: str
    stores_reciprocal: bool
    global_scale: Callable[[torch.Tensor], torch.Tensor]
    row_scale: Callable[[torch.Tensor], torch.Tensor]
    block_scale: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    factor: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    divides: bool
    signs_zero: bool
    value: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    decodes_signed_zero: bool


# ModelOpt -----------------------------------------------------------------------------------------------------------


def _modelopt_global(amax):
    return amax.float() / FULL_SCALE


def _modelopt_block(amax, g):
    scale = amax.float() / (E2M1_MAX * g)
    scale = torch.where(scale == 0, 1.0, scale)
    return e4m3_encode(scale.clamp(min=E4M3_TINY))


# compressed-tensors -------------------------------------------------------------------------------------------------


def _compressed_tensors_global(amax):
    # In the input's dtype: 2688/amax is itself rounded to BF16, or overflows FP16 for amax below 0.041 and becomes 1.0.
    scale = FULL_SCALE / amax.clamp(min=torch.finfo(amax.dtype).tiny)
    return torch.nan_to_num(scale, nan=1.0, posinf=1.0, neginf=1.0).float()


def _compressed_tensors_block(amax, g):
    scale = e4m3_encode(g * (amax / E2M1_MAX).float())  # the division is in the input's dtype
    # Also a block that underflows, not only a block of zeros.
    return torch.where(scale.view(torch.uint8) == 0, torch.tensor(0.125, device=amax.device).to(torch.float8_e4m3fn), scale)


# FlashInfer ---------------------------------------------------------------------------------------------------------


def _flashinfer_global(amax):
    amax = amax.float()
    return torch.where(amax == 0, FLOAT32_MAX, FULL_SCALE / amax)


def _reciprocal_full_scale(amax):
    return torch.tensor(1.0 / FULL_SCALE, dtype=torch.float32, device=amax.device)


def _exact_row(amax):
    amax = amax.float()
    scale = ((1.0 / _reciprocal_full_scale(amax)) / amax).clamp(max=FLOAT32_MAX)
    return torch.where(amax == 0, FLOAT32_MAX, torch.where(scale == 0, 1.0, scale))


def _exact_block(amax, g):
    sixth = torch.tensor(1.0 / E2M1_MAX, dtype=torch.float32, device=amax.device)
    # Not amax / 6: the kernel multiplies by the rounded sixth, and the global scale first.
    return e4m3_encode(amax.float() * (g * sixth))


def _exact_factor(scale, g, amax):
    factor = (1.0 / (scale * (1.0 / g))).clamp(max=FLOAT32_MAX)
    return torch.where(amax == 0, 0.0, factor)


def rcp(x: torch.Tensor) -> torch.Tensor:
    """``rcp.approx.ftz.f32``: the instruction itself on CUDA; elsewhere the correctly rounded reciprocal, subnormals flushed.

    PTX promises one unit in the last place, not which neighbour, so off the GPU the last bit is a choice:
    ``codec.fast_math_undecided`` says which results hang on it.
    """
    if x.is_cuda:
        from helpers.nvfp4.gpu import rcp_approx

        return rcp_approx(x)
    return flush(1.0 / flush(x))


def flush(x: torch.Tensor) -> torch.Tensor:
    """Subnormal float32 to zero of the same sign (PTX ``.ftz``)."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, x * 0.0, x)


def _fast_row(amax):
    amax = amax.float()
    return torch.where(amax == 0, FLOAT32_MAX, rcp(amax * _reciprocal_full_scale(amax)))


def _fast_block(amax, g):
    sixth = rcp(torch.tensor(E2M1_MAX, dtype=torch.float32, device=amax.device))
    return e4m3_encode(g * (amax.float() * sixth))


def _fast_factor(scale, g, amax):
    factor = rcp(scale * rcp(g))
    return torch.where(scale == 0, 0.0, factor)


def _flashinfer_value(v, scale, g):
    return v * scale * (1.0 / g)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="modelopt",
            source="nvidia-modelopt 0.47.0 torch/quantization/qtensor/nvfp4_tensor.py: NVFP4QTensor.quantize, dequantize",
            stores_reciprocal=False,
            global_scale=_modelopt_global,
            row_scale=_modelopt_global,
            block_scale=_modelopt_block,
            factor=lambda scale, g, amax: scale * g,
            divides=True,
            signs_zero=False,
            value=lambda v, scale, g: v * (scale * g),
            decodes_signed_zero=False,
        ),
        Recipe(
            name="compressed_tensors",
            source="compressed-tensors quantization/utils/helpers.py: generate_gparam, calculate_qparams; NVFP4PackedCompressor",
            stores_reciprocal=True,
            global_scale=_compressed_tensors_global,
            row_scale=_compressed_tensors_global,
            block_scale=_compressed_tensors_block,
            factor=lambda scale, g, amax: scale / g,
            divides=True,
            signs_zero=False,
            value=lambda v, scale, g: v * (scale / g),
            decodes_signed_zero=True,
        ),
        Recipe(
            name="flashinfer_exact",
            source="flashinfer 0.7.4 quantization/kernels/nvfp4_quantize.py with FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH=1",
            stores_reciprocal=True,
            global_scale=_flashinfer_global,
            row_scale=_exact_row,
            block_scale=_exact_block,
            factor=_exact_factor,
            divides=False,
            signs_zero=True,
            value=_flashinfer_value,
            decodes_signed_zero=True,
        ),
        Recipe(
            name="flashinfer_fast",
            source="flashinfer 0.7.4 quantization/kernels/nvfp4_quantize.py, its default",
            stores_reciprocal=True,
            global_scale=_flashinfer_global,
            row_scale=_fast_row,
            block_scale=_fast_block,
            factor=_fast_factor,
            divides=False,
            signs_zero=True,
            value=_flashinfer_value,
            decodes_signed_zero=True,
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name; UsageError with the nearest names otherwise."""
    if name not in RECIPES:
        raise unknown("NVFP4 recipe", name, RECIPES)
    return RECIPES[name]
