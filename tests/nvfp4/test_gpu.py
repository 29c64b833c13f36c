"""On a CUDA device: the Triton decode against plain torch, and the FlashInfer recipes against FlashInfer's own kernel, bit for bit.

Run with ``pytest tests/nvfp4/test_gpu.py`` on a GPU machine. Hopper has no instruction that rounds to E2M1, so there FlashInfer's
conversion is replaced by one that rounds with integer arithmetic; everything else in its kernel is its own.
"""

import pytest
import torch

from helpers.nvfp4.codec import Nvfp4, decode, decode_plain, encode, fast_math_undecided
from helpers.nvfp4.elements import unpack
from helpers.nvfp4.recipes import RECIPES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", RECIPES)
def test_triton_decodes_what_plain_torch_decodes(name, dtype):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (3, 1111, 24), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, (3, 1111, 3), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
    g = torch.tensor([3.7e-4, 91.0, 2.0**-30])
    expected = decode_plain(Nvfp4(codes, scales, g, name), dtype)
    ours = decode(Nvfp4(codes.cuda(), scales.cuda(), g.cuda(), name), dtype).cpu()
    assert torch.equal(ours.isnan(), expected.isnan())
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    keep = ~expected.isnan()
    assert torch.equal(ours[keep].view(integer), expected[keep].view(integer))


@pytest.mark.parametrize("name", ["modelopt", "compressed_tensors", "flashinfer_exact"])
def test_the_gpu_encodes_what_the_cpu_encodes(name):
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[0], x[1], x[2, :16] = 0.0, -0.0, x[2, :16] * 1e-6
    cpu, gpu = encode(x, name), encode(x.cuda(), name)
    assert torch.equal(cpu.codes, gpu.codes.cpu())
    assert torch.equal(cpu.scales.view(torch.uint8), gpu.scales.cpu().view(torch.uint8))
    assert torch.equal(cpu.global_scale, gpu.global_scale.cpu())


@pytest.fixture(scope="module")
def quantize():
    """FlashInfer's CuTe DSL quantiser: (x, multiplier) -> codes [M, K/2], scale bytes [M, K/16], linear layout."""
    kernels = pytest.importorskip("flashinfer.quantization.kernels.nvfp4_quantize")
    if torch.cuda.get_device_capability()[0] < 10:
        from flashinfer.quantization import quantization_cute_dsl_utils

        quantization_cute_dsl_utils.cvt_e2m1x8_f32 = _software_e2m1x8()

    def run(x, multiplier):
        codes, scales = kernels.nvfp4_quantize_cute_dsl(x, torch.full((1,), multiplier, device="cuda"), sf_layout=kernels.SF_LAYOUT_LINEAR)
        return codes.view(torch.uint8), scales.view(torch.uint8).view(len(x), -1)

    return run


def _software_e2m1x8():
    from cutlass import Float32, Uint32
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import T, dsl_user_op

    def one(operand, shift):
        return f"""
            abs.f32 a, {operand}; min.f32 a, a, 0f40C00000;
            mov.b32 p, a; and.b32 p, p, 0x7F800000; max.s32 p, p, 0x3F800000; min.s32 p, p, 0x40800000;
            add.s32 r, p, 0x0B400000; mov.b32 rounder, r; add.rn.f32 a, a, rounder; mov.b32 code, a; sub.s32 code, code, r;
            sub.s32 p, p, 0x3F800000; shr.u32 p, p, 22; add.s32 code, code, p;
            mov.b32 p, {operand}; shr.u32 p, p, 28; and.b32 p, p, 8; or.b32 code, code, p;
            shl.b32 code, code, {shift}; or.b32 word, word, code;"""

    text = "{ .reg .f32 a, rounder; .reg .b32 p, r, code, word; mov.b32 word, 0;"
    text += "".join(one(f"${i + 1}", 4 * i) for i in range(8)) + " mov.b32 $0, word; }"

    @dsl_user_op
    def cvt_e2m1x8_f32(v0, v1, v2, v3, v4, v5, v6, v7, *, loc=None, ip=None):
        operands = [Float32(v).ir_value(loc=loc, ip=ip) for v in (v0, v1, v2, v3, v4, v5, v6, v7)]
        word = llvm.inline_asm(
            T.i32(),
            operands,
            text,
            "=r,f,f,f,f,f,f,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
        return Uint32(word)

    return cvt_e2m1x8_f32


SHAPES = [(1, 7168), (128, 4096), (2048, 4096)]


def inputs(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[0, :16], x[0, 16:32], x[0, 32:48] = 0.0, -0.0, x[0, 32:48] * 1e-7
    return x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_is_the_kernel(shape, dtype, quantize, monkeypatch):
    monkeypatch.setenv("FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH", "1")
    x = inputs(shape, dtype)
    multiplier = float(encode(x, "flashinfer_exact").global_scale)
    codes, scales = quantize(x.cuda(), multiplier)
    ours = encode(x, "flashinfer_exact", multiplier)
    assert torch.equal(ours.scales.view(torch.uint8), scales.cpu())
    assert torch.equal(ours.codes, codes.cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("multiplier", [None, 2.0, 641.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_fast_is_the_kernel(shape, multiplier, dtype, quantize, monkeypatch):
    """On the GPU bit for bit; on the CPU wherever the last bit of a reciprocal does not decide."""
    monkeypatch.delenv("FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH", raising=False)
    x = inputs(shape, dtype)
    multiplier = multiplier or float(encode(x, "flashinfer_fast").global_scale)
    codes, scales = (part.cpu() for part in quantize(x.cuda(), multiplier))
    gpu = encode(x.cuda(), "flashinfer_fast", multiplier)
    assert torch.equal(gpu.scales.view(torch.uint8).cpu(), scales)
    assert torch.equal(gpu.codes.cpu(), codes)
    cpu = encode(x, "flashinfer_fast", multiplier)
    open_scales, open_codes = fast_math_undecided(x, multiplier)
    assert not ((cpu.scales.view(torch.uint8) != scales) & ~open_scales).any()
    assert not ((unpack(cpu.codes) != unpack(codes)) & ~open_codes).any()


def test_the_reciprocal_is_within_one_unit_of_the_nearest():
    """What ``fast_math_undecided`` builds on, for every mantissa. (On an H200 87 % of them give the nearest, and so does 6.)"""
    from helpers.nvfp4.gpu import rcp_approx

    every = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32, device="cuda").view(torch.float32)
    off = (rcp_approx(every).view(torch.int32) - (1.0 / every).view(torch.int32)).abs()
    assert off.max() <= 1
