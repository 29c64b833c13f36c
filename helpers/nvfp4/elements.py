"""The two element formats of NVFP4 and how two elements share a byte.

E2M1 (the codes): sign, 2 exponent bits, 1 mantissa bit; magnitudes 0 0.5 1 1.5 2 3 4 6; no infinity, no NaN.
E4M3 (the block scales): sign, 4 exponent bits, 3 mantissa bits; largest 448; subnormals down to 2**-9; 0x7F and 0xFF are NaN.
Both encoders round to nearest, ties to the even code, and saturate (PTX ``cvt.rn.satfinite``).
"""

import torch

from helpers.errors import InputError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_TINY = 2.0**-9

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES = (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES))

_SIX = 0x40C00000
_ONE, _FOUR = 0x3F800000, 0x40800000
# Added to the bits of a power of two p it gives 1.5 * 2**22 * p, a float whose unit in the last place is p / 2.
_TO_ROUNDER = 0x0B400000


def round_to_e2m1_(x: torch.Tensor) -> torch.Tensor:
    """Codes (uint8, same shape) of contiguous float32 ``x``, which is destroyed. NaN becomes a 6 with NaN's own sign bit."""
    bits = x.view(torch.int32)
    sign = bits.bitwise_right_shift(28).bitwise_and_(8)
    bits.bitwise_and_(0x7FFFFFFF).clamp_(max=_SIX)
    # Steps are 0.5 below 2, 1 below 4, 2 above. Adding a float with that unit in the last place makes the adder itself
    # round to nearest even; the steps crossed are then the difference of two bit patterns.
    rounder = bits.bitwise_and(0x7F800000).clamp_(_ONE, _FOUR)
    below = rounder.sub(_ONE).bitwise_right_shift_(22)
    rounder.add_(_TO_ROUNDER)
    x.add_(rounder.view(torch.float32))
    return bits.sub_(rounder).add_(below).bitwise_or_(sign).to(torch.uint8)


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """E2M1 codes 0..15 (uint8, one a byte, shape of ``x``) of any float tensor; -0.0 keeps its sign (code 8), NaN is refused."""
    x = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if x.isnan().any():
        raise InputError("e2m1_encode: the input holds NaN, which E2M1 cannot represent; find where it came from")
    return round_to_e2m1_(x)


def e2m1_decode(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of E2M1 codes 0..15 (one a byte, any shape); code 8 is -0.0."""
    return torch.tensor(E2M1_VALUES, device=codes.device)[codes.long()]


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn nearest to float32 ``x``; the clamp is ours because what a bare cast does beyond 448 depends on the library."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """[..., K] codes, one a byte, to [..., K/2] bytes: the even column in the low nibble."""
    if codes.dtype != torch.uint8 or codes.shape[-1] % 2:
        raise InputError(f"pack: needs uint8 codes with an even last dimension, got {codes.dtype} {tuple(codes.shape)}")
    pairs = codes.contiguous().view(torch.int16)  # low byte: even column
    return pairs.bitwise_or(pairs.bitwise_right_shift(4)).to(torch.uint8)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """[..., K/2] bytes to [..., K] codes, one a byte."""
    packed = as_bytes(packed)
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def as_bytes(packed: torch.Tensor) -> torch.Tensor:
    """The same storage as uint8, for packed codes held as uint8 or as torch's own float4_e2m1fn_x2."""
    if packed.dtype not in (torch.uint8, torch.float4_e2m1fn_x2):
        raise InputError(f"packed E2M1 codes are uint8 or float4_e2m1fn_x2, got {packed.dtype} {tuple(packed.shape)}")
    return packed.view(torch.uint8)


def as_native(packed: torch.Tensor) -> torch.Tensor:
    """The same storage as torch.float4_e2m1fn_x2 (one element is one byte: two values, low nibble first)."""
    return as_bytes(packed).view(torch.float4_e2m1fn_x2)
