"""flashinfer_exact and flashinfer_fast against FlashInfer's own inline assembly, read from the installed package and interpreted.

Its kernels need a GPU (tests/nvfp4/test_gpu.py runs them there). What surrounds the assembly is five lines, repeated here and
compared with the package's text, so that a new FlashInfer that changes them fails this test.
"""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from helpers.nvfp4.codec import encode, fast_math_undecided
from helpers.nvfp4.elements import unpack

ROOT = Path(find_spec("flashinfer").submodule_search_locations[0])


def source(file: str) -> str:
    return (ROOT / file).read_text()


@cache
def assembly(file: str, function: str) -> str:
    """The one inline-assembly string in ``function``."""
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            (text,) = [t for t in texts if ";" in t and re.search(r"\$\d", t)]
            return text
    raise LookupError(f"{file} has no function {function}")


def nearest_reciprocal(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.float32(1) / x


def _flush(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def _saturated(x, limit, dtype):
    return np.clip(x, -limit, limit).astype(dtype).view(np.uint8)


def _e2m1(x):
    """PTX ISA, cvt: with .satfinite a NaN becomes the positive largest number of e2m1."""
    return _saturated(np.where(np.isnan(x), np.float32(6), x), 6.0, ml_dtypes.float4_e2m1fn).astype(np.uint32) & np.uint32(15)


def run(text: str, outputs: int, *inputs: np.ndarray, reciprocal=nearest_reciprocal) -> list[np.ndarray]:
    """Execute ``text`` on arrays: operands $outputs.. are the inputs (float32 or uint32); returns the output operands."""
    registers = {f"${outputs + i}": np.asarray(value) for i, value in enumerate(inputs)}

    def read(name, kind):
        if name.startswith("0f"):
            return np.array([int(name[2:], 16)], np.uint32).view(np.float32)
        value = np.array([int(name, 16)], np.uint32) if name.startswith("0x") else registers[name]
        if kind == "f" and value.dtype != np.float32:
            return value.astype(np.uint32).view(np.float32)
        if kind == "u" and value.dtype == np.float32:
            return value.view(np.uint32)
        return value

    def step(op, args):
        f = lambda i: read(args[i], "f")  # noqa: E731
        u = lambda i: read(args[i], "u")  # noqa: E731
        match op.split("."):
            case ["mul", "f32"] | ["mul", "rn", "f32"]:
                return f(1) * f(2)
            case ["div", "rn", "f32"]:
                return f(1) / f(2)
            case ["min", "f32"]:
                return np.fmin(f(1), f(2))
            case ["rcp", "approx", "ftz", "f32"]:
                return _flush(reciprocal(_flush(f(1))))
            case ["setp", "eq", "f32"]:
                return f(1) == f(2)
            case ["selp", "f32"]:
                return np.where(registers[args[3]], f(1), f(2))
            case ["and", "b32"]:
                return u(1) & u(2)
            case ["shl", "b32"]:
                return u(1) << np.uint32(int(args[2]))
            case ["shr", "b32"]:
                return u(1) >> np.uint32(int(args[2]))
            case ["mov", "b32" | "f32"]:
                return registers[args[1]] if args[1] in registers else read(args[1], "f" if args[1].startswith("0f") else "u")
            case ["cvt", "u16", "u32"] | ["cvt", "u32", "u16"]:
                return u(1) & np.uint32(0xFFFF)
            case ["cvt", "rn", "f16x2", "e4m3x2"]:
                pair = u(1).astype(np.uint16).view(np.uint8).reshape(-1, 2)
                return np.ascontiguousarray(pair).view(ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint32).reshape(-1)
            case ["cvt", "f32", "f16"]:
                return u(1).astype(np.uint16).view(np.float16).astype(np.float32)
            case ["cvt", "rn", "satfinite", "e4m3x2", "f32"]:
                high, low = (_saturated(f(i), 448.0, ml_dtypes.float8_e4m3fn).astype(np.uint32) for i in (1, 2))
                return high << np.uint32(8) | low
            case ["cvt", "rn", "satfinite", "e2m1x2", "f32"]:
                return _e2m1(f(1)) << np.uint32(4) | _e2m1(f(2))
        raise NotImplementedError(f"PTX {op}")

    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        text = text.strip()
        for line in (text[1:-1] if text.startswith("{") else text).split(";"):
            op, _, rest = line.strip().partition(" ")
            if not op or op == ".reg":
                continue
            if op == "mov.b32" and rest.startswith("{"):  # unpack a word into two halves
                targets, value = re.fullmatch(r"\{(.+)\}\s*,\s*(\S+)", rest).groups()
                low, high = (name.strip() for name in targets.split(","))
                registers[low], registers[high] = read(value, "u") & np.uint32(0xFFFF), read(value, "u") >> np.uint32(16)
            elif op == "mov.b32" and rest.rstrip().endswith("}"):  # pack bytes into a word
                target, values = re.fullmatch(r"(\S+)\s*,\s*\{(.+)\}", rest).groups()
                registers[target] = sum((registers[v.strip()] << np.uint32(8 * i)) for i, v in enumerate(values.split(",")))
            else:
                args = [arg.strip() for arg in rest.split(",")]
                registers[args[0]] = step(op, args)
    return [registers[f"${i}"] for i in range(outputs)]


# ----------------------------------------------------------------------------------------------------------------------

COMMON, QUANTIZE = "cute_dsl/fp4_common.py", "quantization/quantization_cute_dsl_utils.py"
TO_FLOATS = {torch.bfloat16: "bfloat2_to_float2_scaled", torch.float16: "half2_to_float2_scaled"}


def test_what_surrounds_the_assembly_is_what_this_file_repeats():
    text = source(QUANTIZE)
    body = text[text.index("def _nvfp4_standard_quant_from_amax") : text.index("def _nvfp4_4over6_quant_from_values")]
    order = (
        "if cutlass.const_expr(disable_fp4_quant_fast_math):",
        "scale_float = nvfp4_scale_from_amax_rn(block_max, global_scale)",
        "fp4_max_rcp = rcp_approx_ftz(Float32(6.0))",
        "scale_float = global_scale * (block_max * fp4_max_rcp)",
        "scale_fp8_u32 = cvt_f32_to_e4m3(scale_float)",
        "output_scale = nvfp4_compute_output_scale_rn(",
        "output_scale = nvfp4_compute_output_scale(scale_fp8_u32, global_scale)",
    )
    positions = [body.index(line) for line in order]
    assert positions == sorted(positions)


def kernel(x: torch.Tensor, gs: float, fast: bool, reciprocal=nearest_reciprocal) -> tuple[np.ndarray, np.ndarray]:
    """E4M3 bytes [N] and E2M1 codes [N, 16] of [N, 16] bfloat16 or float16, as FlashInfer's kernel makes them."""
    gs = np.full(1, gs, np.float32)
    amax = x.abs().amax(-1).float().numpy()
    if fast:
        (sixth,) = run("rcp.approx.ftz.f32 $0, $1;", 1, np.full(1, 6, np.float32), reciprocal=reciprocal)
        with np.errstate(over="ignore"):
            scale = gs * (amax * sixth)
    else:
        (scale,) = run(assembly(COMMON, "nvfp4_scale_from_amax_rn"), 1, amax, gs)
    (byte,) = run(assembly(COMMON, "cvt_f32_to_e4m3"), 1, scale)
    if fast:
        (factor,) = run(assembly(COMMON, "nvfp4_compute_output_scale"), 1, byte, gs, reciprocal=reciprocal)
    else:
        (factor,) = run(assembly(COMMON, "nvfp4_compute_output_scale_rn"), 1, byte, gs, amax)
    words = x.contiguous().view(torch.int16).numpy().view(np.uint32)
    floats = [run(assembly(COMMON, TO_FLOATS[x.dtype]), 2, words[:, i], factor) for i in range(8)]
    floats = [value for pair in floats for value in pair]
    halves = [run(assembly(QUANTIZE, "cvt_e2m1x8_f32"), 1, *floats[i : i + 8])[0] for i in (0, 8)]
    packed = np.ascontiguousarray(np.stack(halves, -1)).view(np.uint8)
    return (byte & 0xFF).astype(np.uint8), unpack(torch.from_numpy(packed)).numpy()


def blocks(dtype: torch.dtype) -> torch.Tensor:
    """[N, 16]: ordinary, zero, signed zero, tiny, subnormal, saturating, and every bit pattern of the dtype that is finite."""
    generator = torch.Generator().manual_seed(0)
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    every = every[: len(every) // 16 * 16].view(-1, 16)
    shuffled = every.flatten()[torch.randperm(every.numel(), generator=generator)].view(-1, 16)
    normal = torch.randn(2048, 16, generator=generator)
    zeros = torch.zeros(4, 16)
    zeros[1], zeros[2, ::2], zeros[3, 0] = -0.0, -0.0, 1e-7
    wide = normal * 10.0 ** torch.randint(-7, 4, (2048, 1), generator=generator)
    return torch.cat((every, shuffled, normal.to(dtype), wide.to(dtype), zeros.to(dtype)))


@pytest.mark.parametrize("gs", [1.0, 0.37, 2688 / 0.0913, 2.0**20, 3.4028234663852886e38])
@pytest.mark.parametrize("recipe", ["flashinfer_exact", "flashinfer_fast"])
@pytest.mark.parametrize("dtype", TO_FLOATS)
def test_bit_exact_against_the_kernels_own_assembly(dtype, recipe, gs):
    x = blocks(dtype)
    scales, codes = kernel(x, gs, fast=recipe == "flashinfer_fast")
    ours = encode(x, recipe, gs)
    assert np.array_equal(ours.scales.view(torch.uint8).numpy()[:, 0], scales)
    assert np.array_equal(unpack(ours.codes).numpy(), codes)


def test_the_interpreter_reads_the_package():
    """A changed rounding in the assembly must change the result: the comparison above is not with itself."""
    text = assembly(COMMON, "nvfp4_scale_from_amax_rn")
    amax, gs = np.linspace(0.1, 3, 1000, dtype=np.float32), np.full(1, 977.0, np.float32)
    assert not np.array_equal(run(text, 1, amax, gs)[0], run(text.replace("0f3E2AAAAB", "0f3E2AAAAA"), 1, amax, gs)[0])


@pytest.mark.parametrize(("gs", "dtype"), [(2.0, torch.bfloat16), (2.0, torch.float16), (2688 / 4.1875, torch.bfloat16)])
def test_what_fast_math_leaves_open_contains_every_conforming_reciprocal(gs, dtype):
    """A global scale that is a power of two puts many numbers on exact ties, where the last bit of a reciprocal decides."""
    x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(4)).to(dtype)
    generator = np.random.default_rng(0)

    def some_conforming_reciprocal(value):
        nearest = nearest_reciprocal(value)
        return np.nextafter(nearest, np.float32(generator.choice([0, np.inf])), dtype=np.float32) if generator.random() < 0.67 else nearest

    ours = encode(x, "flashinfer_fast", gs)
    open_scales, open_codes = fast_math_undecided(x, gs)
    differing = 0
    for _ in range(8):
        scales, codes = kernel(x, gs, fast=True, reciprocal=some_conforming_reciprocal)
        other_scale = ours.scales.view(torch.uint8).numpy() != scales[:, None]
        other_code = unpack(ours.codes).numpy() != codes
        assert not (other_scale & ~open_scales.numpy()).any()
        assert not (other_code & ~open_codes.numpy()).any()
        differing += other_code.sum()
    if gs == 2.0:
        assert differing, "no reciprocal changed anything: the test shows nothing"
    assert open_codes.float().mean() < 0.05, "nearly everything is decided, even so"
