"""The integer conversions against the element codec: the assembly text itself is executed, one numpy array a register."""

import re

import numpy as np
import pytest
import torch

from helpers.kernels.e2m1_sm90 import translate
from helpers.nvfp4.elements import E2M1_VALUES, e2m1_encode


def execute(assembly: str, **registers: np.ndarray) -> dict[str, np.ndarray]:
    """The registers after straight-line PTX. Each holds its bits as uint32; only the instructions that `translate` uses are known."""
    values = {name: np.ascontiguousarray(bits).view(np.uint32) for name, bits in registers.items()}

    def read(operand: str) -> np.ndarray:
        if operand in values:
            return values[operand]
        number = int(operand.replace("0f", "0x"), 16) if operand.startswith(("0f", "0x")) else int(operand)
        return np.array(number, np.uint32)

    def f32(x):
        return x.view(np.float32)

    def s32(x):
        return x.view(np.int32)

    def halves(x):
        return np.stack((x & 0xFFFF, x >> 16), -1).astype(np.uint16)

    def joined(low_high):
        return low_high[..., 0].astype(np.uint32) | low_high[..., 1].astype(np.uint32) << 16

    def f16x2(a, b):
        return joined((halves(a).view(np.float16) * halves(b).view(np.float16)).view(np.uint16))

    def bf16x2(a, b):
        def wide(x):
            return torch.from_numpy(halves(x).view(np.int16).copy()).view(torch.bfloat16)

        return joined((wide(a) * wide(b)).view(torch.int16).numpy().view(np.uint16))

    operations = {
        "min.f32": lambda a, b: np.fmin(f32(a), f32(b)),
        "max.f32": lambda a, b: np.fmax(f32(a), f32(b)),
        "abs.f32": lambda a: np.abs(f32(a)),
        "add.rn.f32": lambda a, b: f32(a) + f32(b),
        "mov.b32": lambda a: a,
        "and.b32": lambda a, b: a & b,
        "or.b32": lambda a, b: a | b,
        "max.s32": lambda a, b: np.maximum(s32(a), s32(b)),
        "min.s32": lambda a, b: np.minimum(s32(a), s32(b)),
        "add.s32": lambda a, b: a + b,
        "sub.s32": lambda a, b: a - b,
        "shl.b32": lambda a, b: a << b,
        "shr.u32": lambda a, b: a >> b,
        "cvt.u8.u32": lambda a: a & 0xFF,
        "cvt.u32.u8": lambda a: a & 0xFF,
        "mul.rn.f16x2": f16x2,
        "mul.rn.bf16x2": bf16x2,
    }
    for statement in filter(None, (part.strip() for part in re.sub(r"[{}]|\.reg [^;]*;", " ", assembly).split(";"))):
        name, _, operands = statement.partition(" ")
        target, *sources = (operand.strip() for operand in operands.split(","))
        values[target] = np.ascontiguousarray(operations[name](*map(read, sources))).view(np.uint32)
    return values


def floats() -> np.ndarray:
    """Every float32 near a midpoint or a value of E2M1, every bfloat16 and float16, and a million random bit patterns."""
    points = np.array([*E2M1_VALUES[:8], 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32).view(np.int32)
    bits = (points[:, None] + np.arange(-2000, 2001, dtype=np.int32)).ravel()
    near = bits[bits >= 0].view(np.float32)
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)
    return np.concatenate((near, -near, patterns.view(torch.bfloat16).float(), patterns.view(torch.float16).float(), random))


@pytest.fixture(scope="module")
def x():
    values = floats()
    return values[~np.isnan(values)]


def test_every_code_is_that_of_the_codec(x):
    other = np.roll(x, 1)
    byte = execute(translate("cvt.rn.satfinite.e2m1x2.f32 byte, high, low;"), high=other, low=x)["byte"]
    low, high = (e2m1_encode(torch.from_numpy(values)).numpy() for values in (x, other))
    assert np.array_equal(byte, low | high << 4)


def test_nan_becomes_plus_six_as_in_the_instruction():
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32)
    assert execute(translate("cvt.rn.satfinite.e2m1x2.f32 byte, $2, $1;"), **{"$1": nan, "$2": nan})["byte"].tolist() == [0x77, 0x77]


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_every_byte_decodes_to_its_two_values(kind):
    pairs = execute(translate(f"cvt.rn.{kind}.e2m1x2 pair, byte;"), byte=np.arange(256, dtype=np.uint32))["pair"]
    dtype = torch.float16 if kind == "f16x2" else torch.bfloat16
    halves = torch.from_numpy(pairs.view(np.int16).reshape(256, 2).copy()).view(dtype)
    expected = torch.tensor([[E2M1_VALUES[byte & 15], E2M1_VALUES[byte >> 4]] for byte in range(256)])
    assert torch.equal(halves.float(), expected)
    assert torch.equal(halves.float().signbit(), expected.signbit())


def test_the_rest_of_the_text_is_left_alone():
    text = "{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, $2, $1; mov.b32 $0, {b, b, b, b}; cvt.rn.bf16x2.f32 $3, $1, $2; }"
    translated = translate(text)
    assert "e2m1" not in translated
    assert translated.startswith("{ .reg .b8 b; ") and translated.endswith("mov.b32 $0, {b, b, b, b}; cvt.rn.bf16x2.f32 $3, $1, $2; }")
    assert translate("add.f32 $0, $1, $2;") == "add.f32 $0, $1, $2;"
