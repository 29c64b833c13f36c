"""Triton kernels for CUDA: decode at memory speed, and the one instruction that cannot be had on a CPU.

Imported only for CUDA tensors; the plain torch path in ``codec`` stays the definition.
"""

import torch
import triton
import triton.language as tl

from helpers.nvfp4.recipes import Recipe

# How the decoded number is put together; the order of the roundings differs (recipes.Recipe.value).
_SCALE_TIMES_GLOBAL, _SCALE_OVER_GLOBAL, _GLOBAL_LAST = 0, 1, 2
_FORMULA = {
    "modelopt": _SCALE_TIMES_GLOBAL,
    "compressed_tensors": _SCALE_OVER_GLOBAL,
    "flashinfer_exact": _GLOBAL_LAST,
    "flashinfer_fast": _GLOBAL_LAST,
}
_BLOCKS_PER_PROGRAM = 256


@triton.jit
def _magnitude(code):
    # Twice the magnitude, a hexadecimal digit a code: 0 1 2 3 4 6 8 C.
    twice = (0xC8643210 >> ((code & 7) * 4).to(tl.uint32)) & 15
    return twice.to(tl.float32) * 0.5


@triton.jit
def _signed(code, signed_zero: tl.constexpr):
    magnitude = _magnitude(code)
    value = tl.where(code >= 8, -magnitude, magnitude)
    if not signed_zero:
        value = tl.where(magnitude == 0.0, 0.0, value)
    return value


@triton.jit
def _decode_kernel(
    codes, scales, global_scale, out, blocks, blocks_a_global, formula: tl.constexpr, signed_zero: tl.constexpr, rows: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    inside = block < blocks
    g = tl.load(global_scale + block // blocks_a_global, mask=inside, other=1.0)
    scale = tl.load(scales + block, mask=inside, other=0.0).to(tl.float32)
    byte = tl.load(codes + block[:, None] * 8 + tl.arange(0, 8)[None, :], mask=inside[:, None], other=0)
    low, high = _signed(byte & 15, signed_zero), _signed(byte >> 4, signed_zero)
    if formula == 0:
        step = (scale * g)[:, None]
        low, high = low * step, high * step
    elif formula == 1:
        step = tl.div_rn(scale, g)[:, None]
        low, high = low * step, high * step
    else:
        last = tl.div_rn(1.0, g)[:, None]
        low, high = low * scale[:, None] * last, high * scale[:, None] * last
    value = tl.interleave(low, high).to(out.dtype.element_ty)
    tl.store(out + block[:, None] * 16 + tl.arange(0, 16)[None, :], value, mask=inside[:, None])


def decode_cuda(rules: Recipe, codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``codec.decode`` for contiguous CUDA tensors; writes and returns ``out``."""
    blocks = scales.numel()
    g = global_scale.reshape(-1).contiguous()
    grid = (triton.cdiv(blocks, _BLOCKS_PER_PROGRAM),)
    with torch.cuda.device(codes.device):
        _decode_kernel[grid](
            codes, scales, g, out, blocks, blocks // g.numel(), _FORMULA[rules.name], rules.decodes_signed_zero, _BLOCKS_PER_PROGRAM
        )
    return out


@triton.jit
def _rcp_kernel(x, out, n, width: tl.constexpr):
    i = tl.program_id(0) * width + tl.arange(0, width)
    value = tl.load(x + i, mask=i < n, other=1.0)
    value = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + i, value, mask=i < n)


def rcp_approx(x: torch.Tensor) -> torch.Tensor:
    """``rcp.approx.ftz.f32`` of a float32 CUDA tensor, any shape."""
    x = x.contiguous()
    out = torch.empty_like(x)
    with torch.cuda.device(x.device):
        _rcp_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
    return out
