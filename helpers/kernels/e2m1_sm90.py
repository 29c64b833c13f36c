"""E2M1 conversions in integer arithmetic, for GPUs without the instructions: Hopper has no ``cvt…e2m1x2``.

CuTe DSL kernels write the conversion as assembly text. ``install`` puts a translation between that text and the compiler, so every
kernel that asks for the instruction gets the same bits from ordinary ones, and nothing else in it changes.
"""

import re
from collections.abc import Callable
from functools import partial

_ENCODE = re.compile(r"cvt\.rn\.satfinite\.e2m1x2\.f32\s+(\S+?)\s*,\s*(\S+?)\s*,\s*(\S+?)\s*;")
_DECODE = re.compile(r"cvt\.rn\.(f16x2|bf16x2)\.e2m1x2\s+(\S+?)\s*,\s*(\S+?)\s*;")
_SCALES = re.compile(r"cvt\.rn\.bf16x2\.e4m3x2\s+(\S+?)\s*,\s*(\S+?)\s*;")

# The two value bits of exponent and the one of mantissa are moved to where the wider format has its own, which leaves the value
# 2^(bias - 1) too small: a shift, and a multiplication that also makes E2M1's subnormal 0.5 right. f16: 2^14; bf16: 2^126.
_WIDER = {"f16x2": (9, 0x74007400), "bf16x2": (6, 0x7E807E80)}


def _encode_one(source: str, shift: int) -> str:
    """Adds the code of one float32 to ``zword``: to nearest, ties to even, saturating at 6; NaN becomes +6, as in the instruction.

    p is the power of two of the value's binade, but at least 1 and at most 4, where E2M1 has steps of p/2. Adding 1.5 * 2^22 * p
    leaves the sum a last place of p/2, so that the addition itself rounds; what it left in the low bits counts those steps, and
    twice the binade's number is added for the codes below it.
    """
    return (
        f"min.f32 zx, {source}, 0f40C00000; max.f32 zx, zx, 0fC0C00000; abs.f32 za, zx; "
        "mov.b32 zp, za; and.b32 zp, zp, 0x7F800000; max.s32 zp, zp, 0x3F800000; min.s32 zp, zp, 0x40800000; "
        "add.s32 zm, zp, 0x0B400000; mov.b32 zr, zm; add.rn.f32 za, za, zr; mov.b32 zc, za; sub.s32 zc, zc, zm; "
        "sub.s32 zp, zp, 0x3F800000; shr.u32 zp, zp, 22; add.s32 zc, zc, zp; "
        "mov.b32 zp, zx; shr.u32 zp, zp, 28; and.b32 zp, zp, 8; or.b32 zc, zc, zp; "
        f"shl.b32 zc, zc, {shift}; or.b32 zword, zword, zc; "
    )


def _encode(found: re.Match) -> str:
    byte, high, low = found.groups()
    registers = "{ .reg .f32 zx, za, zr; .reg .b32 zp, zm, zc, zword; mov.b32 zword, 0; "
    return registers + _encode_one(low, 0) + _encode_one(high, 4) + f"cvt.u8.u32 {byte}, zword; }}"


def _decode(found: re.Match) -> str:
    kind, pair, byte = found.groups()
    shift, factor = _WIDER[kind]
    return (
        f"{{ .reg .b32 zt, zu; cvt.u32.u8 zt, {byte}; and.b32 zu, zt, 0x0F; and.b32 zt, zt, 0xF0; shl.b32 zt, zt, 12; or.b32 zu, zu, zt; "
        f"and.b32 zt, zu, 0x00080008; shl.b32 zt, zt, 12; and.b32 zu, zu, 0x00070007; shl.b32 zu, zu, {shift}; or.b32 zu, zu, zt; "
        f"mov.b32 zt, {factor:#x}; mul.rn.{kind} {pair}, zu, zt; }}"
    )


def _decode_scales(found: re.Match) -> str:
    """E4M3 to bfloat16 by way of float16, which holds every E4M3 value, and so does bfloat16."""
    pair, scales = found.groups()
    return (
        f"{{ .reg .b32 zt; .reg .b16 zl, zh; .reg .f32 za, zb; cvt.rn.f16x2.e4m3x2 zt, {scales}; mov.b32 {{zl, zh}}, zt; "
        f"cvt.f32.f16 za, zl; cvt.f32.f16 zb, zh; cvt.rn.bf16x2.f32 {pair}, zb, za; }}"
    )


def translate(assembly: str) -> str:
    """PTX without the conversions of E2M1 (and E4M3 to bfloat16) that sm_100 introduced."""
    for pattern, replacement in ((_ENCODE, _encode), (_DECODE, _decode), (_SCALES, _decode_scales)):
        assembly = pattern.sub(replacement, assembly)
    return assembly


def install() -> None:
    """For this process, and before its first compile: every inline assembly of a CuTe DSL kernel is translated."""
    from cutlass._mlir.dialects import llvm

    if not isinstance(llvm.inline_asm, partial):
        llvm.inline_asm = partial(_translated, llvm.inline_asm)


def _translated(inline_asm: Callable, *args, **kwargs):
    """The text is the third argument, or the keyword asm_string."""
    if "asm_string" in kwargs:
        return inline_asm(*args, **kwargs | {"asm_string": translate(kwargs["asm_string"])})
    result, operands, assembly, *rest = args
    return inline_asm(result, operands, translate(assembly), *rest, **kwargs)
