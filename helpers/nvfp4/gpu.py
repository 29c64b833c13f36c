"""Triton kernels for CUDA: decode at memory speed, and the one instruction that cannot be had on a CPU.

Imported only for CUDA tensors; the plain torch path in ``codec`` stays the definition.
"""

import torch
import triton
import triton.language as tl

# How the decoded number is put together; the order of the roundings differs (recipes.Recipe.value).
_SCALE_TIMES_GLOBAL, _SCALE_OVER_GLOBAL, _GLOBAL_LAST = 0, 1, 2
_FORMULA = {
    "modelopt": _SCALE_TIMES_GLOBAL,
    "compressed_tensors": _SCALE_OVER_GLOBAL,
    "flashinfer_exact": _GLOBAL_LAST,
    "flashinfer_fast": _GLOBAL_LAST,
}
# Words of codes (8 codes, half a block) that a program takes, and its warps. A thread that holds a word stores 16 bytes of bfloat16.
_WORDS, _WARPS = 1024, 4


@triton.jit
def _decode_kernel(codes, scales, global_scale, out, words, chunks, formula: tl.constexpr, signed_zero: tl.constexpr, width: tl.constexpr):
    """words: of 8 codes under one global scale; chunks: programs for them."""
    matrix = (tl.program_id(0) // chunks).to(tl.int64)
    i = (tl.program_id(0) % chunks) * width + tl.arange(0, width)
    inside = i < words
    word = tl.load(codes + matrix * words + i, mask=inside, other=0)
    scale = tl.load(scales + matrix * (words // 2) + i // 2, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(global_scale + matrix)
    if formula == 0:
        step = scale * g
    elif formula == 1:
        step = tl.div_rn(scale, g)
    else:
        step = scale
    k = tl.arange(0, 8)
    code = (word[:, None] >> (k * 4)[None, :]) & 15
    # Twice the magnitude, a hexadecimal digit a code: 0 1 2 3 4 6 8 C.
    twice = (0xC8643210 >> ((code & 7) * 4).to(tl.uint32)) & 15
    # A product, because a negation may be compiled to 0 - x, which has no -0.0.
    value = twice.to(tl.float32) * tl.where(code >= 8, -0.5, 0.5)
    if not signed_zero:
        value = tl.where(twice == 0, 0.0, value)
    value = value * step[:, None]
    if formula == 2:
        value = value * g
    where = out + matrix * (8 * words) + 8 * i[:, None] + k[None, :]
    tl.store(where, value.to(out.dtype.element_ty), mask=inside[:, None])


def decode_cuda(
    recipe: str, signed_zero: bool, codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """``codec.decode`` for contiguous CUDA tensors by the named recipe; writes and returns ``out``. signed_zero: code 8 is -0.0."""
    g = global_scale.reshape(-1).contiguous()
    formula = _FORMULA[recipe]
    if formula == _GLOBAL_LAST:
        g = 1.0 / g  # here, where a division is rounded as IEEE says
    codes = (codes if codes.data_ptr() % 4 == 0 else codes.clone()).view(torch.int32)
    words = codes.numel() // g.numel()
    chunks = triton.cdiv(words, _WORDS)
    with torch.cuda.device(codes.device):
        _decode_kernel[(chunks * g.numel(),)](codes, scales, g, out, words, chunks, formula, signed_zero, _WORDS, num_warps=_WARPS)
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
