"""The element codecs against ml_dtypes (which judges only these; inputs are clamped first, its overflow has changed with versions)."""

import ml_dtypes
import numpy as np
import pytest
import torch

from helpers.errors import InputError
from helpers.nvfp4.elements import E2M1_VALUES, as_native, e2m1_decode, e2m1_encode, e4m3_encode, pack, unpack


def neighbours(values: np.ndarray, reach: int = 300) -> np.ndarray:
    """Every float32 within ``reach`` representable steps of each value, both signs."""
    bits = np.asarray(values, np.float32).view(np.int32)[:, None] + np.arange(-reach, reach + 1, dtype=np.int32)
    near = bits.ravel()[bits.ravel() >= 0].view(np.float32)
    return np.concatenate((near, -near))


def every_16_bit() -> np.ndarray:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = torch.cat((patterns.view(torch.bfloat16).float(), patterns.view(torch.float16).float()))
    return values[~values.isnan()].numpy()


def random_bits(n: int = 1_000_000) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    return values[~np.isnan(values)]


def midpoints(values: np.ndarray) -> np.ndarray:
    return (values[:-1] + values[1:]) / 2


E2M1 = np.array(E2M1_VALUES[:8], np.float32)
E4M3 = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


@pytest.mark.parametrize(
    "x",
    [neighbours(midpoints(E2M1), 2000), neighbours(E2M1, 500), every_16_bit(), random_bits()],
    ids=["ties", "values", "16-bit", "random"],
)
def test_e2m1_encode(x):
    expected = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    assert np.array_equal(e2m1_encode(torch.from_numpy(x)).numpy(), expected)


def test_e2m1_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1_encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1_encode(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_e2m1_ends():
    ends = torch.tensor([0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), 3e38])
    assert e2m1_encode(ends).tolist() == [0, 8, 0, 8, 7, 15, 7]
    with pytest.raises(InputError, match="NaN"):
        e2m1_encode(torch.tensor([1.0, float("nan")]))


def test_e2m1_encode_leaves_its_input_alone():
    x = torch.tensor([1.3, -2.2])
    e2m1_encode(x)
    assert x.tolist() == pytest.approx([1.3, -2.2])


def test_e2m1_decode():
    decoded = e2m1_decode(torch.arange(16, dtype=torch.uint8))
    expected = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(decoded.numpy().view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(
    "x",
    [neighbours(midpoints(E4M3)), neighbours(E4M3, 50), every_16_bit(), random_bits()],
    ids=["ties", "values", "16-bit", "random"],
)
def test_e4m3_encode(x):
    expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(e4m3_encode(torch.from_numpy(x)).view(torch.uint8).numpy(), expected)


def test_pack_puts_the_even_column_low_and_every_byte_round_trips():
    assert pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]
    packed = torch.arange(256, dtype=torch.uint8).view(4, 64)
    assert torch.equal(pack(unpack(packed)), packed)
    assert torch.equal(unpack(as_native(packed)), unpack(packed))
    with pytest.raises(InputError, match="even last dimension"):
        pack(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(InputError, match="int8"):
        unpack(torch.zeros(4, dtype=torch.int8))
