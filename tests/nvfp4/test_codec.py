"""Recipes against their own implementations; the fast paths against the plain one; and what is refused."""

import math

import pytest
import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from hypothesis import given, settings
from hypothesis import strategies as st
from modelopt.torch.quantization.qtensor import NVFP4QTensor

from helpers.errors import InputError, UsageError
from helpers.nvfp4 import codec
from helpers.nvfp4.codec import Nvfp4, check, decode, decode_plain, encode
from helpers.nvfp4.elements import as_native, unpack
from helpers.nvfp4.recipes import RECIPES

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def weights(dtype: torch.dtype, std: float = 0.02) -> torch.Tensor:
    """[256, 512]: normal, with rows of zeros, of -0.0, tiny and graded blocks, an outlier, and values on exact ties."""
    w = torch.randn(256, 512, generator=torch.Generator().manual_seed(1)) * std
    w[0, :16], w[0, 16:32], w[1] = 0.0, -0.0, w[1] * 1e-6
    w[2, ::3] = -0.0
    w[3, :16] = torch.tensor([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25] * 2) * std / 2
    w[4:36] *= torch.logspace(-8, 0, 32).unsqueeze(1)
    w[40, 7] = 40 * std
    return w.to(dtype)


def modelopt(w, global_scale=None):
    quantized, scales, g = NVFP4QTensor.quantize(w, 16, weights_scaling_factor_2=global_scale)
    return quantized, scales, g


def compressed_tensors(w):
    """As llm-compressor's weight observer does it: extrema in the weight's dtype."""
    scheme = preset_name_to_scheme("NVFP4", ["Linear"])
    g = generate_gparam(w.min().reshape(1), w.max().reshape(1))
    blocks = w.unflatten(-1, (-1, 16))
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, global_scale=g)
    state = NVFP4PackedCompressor.compress({"weight": w, "weight_scale": scales, "weight_global_scale": g}, scheme)
    return state, scheme


@pytest.mark.parametrize("std", [0.02, 3.0, 1e-4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_modelopt_encode(dtype, std):
    w = weights(dtype, std)
    quantized, scales, g = modelopt(w)
    ours = encode(w, "modelopt")
    assert same(ours.codes, quantized._quantized_data)
    assert same(ours.scales, scales)
    assert same(ours.global_scale, g)


@pytest.mark.parametrize("factor", [0.01, 0.5, 3.0, 1e5])
def test_modelopt_encode_with_a_given_global_scale(factor):
    """Static scales: too small a one saturates the block scales at 448, too large a one clamps them to 2**-9."""
    w = weights(torch.bfloat16)
    g = w.abs().amax().float() / 2688 * factor
    quantized, scales, _ = modelopt(w, g)
    ours = encode(w, "modelopt", g)
    assert same(ours.codes, quantized._quantized_data)
    assert same(ours.scales, scales)


@pytest.mark.parametrize("std", [0.02, 3.0, 1e-4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_compressed_tensors_encode(dtype, std):
    w = weights(dtype, std)
    state, _ = compressed_tensors(w)
    ours = encode(w, "compressed_tensors")
    assert same(ours.codes, state["weight_packed"])
    assert same(ours.scales, state["weight_scale"])
    assert same(ours.global_scale.reshape(1), state["weight_global_scale"])


def test_small_float16_weights_overflow_compressed_tensors_global_scale():
    """2688/amax does not fit FP16 below amax = 0.041; the library then stores 1.0, and the block scales carry everything."""
    ours = encode(weights(torch.float16, 1e-3).clamp(-0.04, 0.04), "compressed_tensors")
    assert ours.global_scale == 1.0
    assert encode(weights(torch.bfloat16, 1e-3).clamp(-0.04, 0.04), "compressed_tensors").global_scale > 2688


def every_code_and_scale() -> tuple[torch.Tensor, torch.Tensor]:
    """All 16 codes under all 256 scale bytes: codes [256, 8], scales [256, 1]."""
    low_first = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    return low_first.expand(256, 8).contiguous(), torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).unsqueeze(1)


GLOBALS = [1.0, 0.00010713, 3.3e-7, 17.0, 2.0**-20]


def equal_with_nan(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    nan = theirs.isnan()
    return torch.equal(ours.isnan(), nan) and same(ours[~nan], theirs[~nan])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("g", GLOBALS)
def test_modelopt_decode_every_code_under_every_scale(g, dtype):
    codes, scales = every_code_and_scale()
    g = torch.tensor(g)
    theirs = NVFP4QTensor((256, 16), dtype, codes).dequantize(dtype, scale=scales, double_scale=g, block_sizes={-1: 16})
    assert equal_with_nan(decode(Nvfp4(codes, scales, g, "modelopt"), dtype), theirs)


@pytest.mark.parametrize("g", GLOBALS)
def test_compressed_tensors_decode_every_code_under_every_scale(g):
    codes, scales = every_code_and_scale()
    scheme = preset_name_to_scheme("NVFP4", ["Linear"])
    state = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": torch.tensor([1 / g])}
    theirs = NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    ours = decode(Nvfp4(codes, scales, torch.tensor(1 / g), "compressed_tensors"), theirs.dtype)
    assert equal_with_nan(ours, theirs)


@pytest.mark.parametrize("g", GLOBALS)
def test_flashinfer_decode_every_code_under_every_scale(g):
    from flashinfer.quantization.fp4_quantization import _e2m1_and_ufp8sf_scale_to_float_cpu

    codes, scales = every_code_and_scale()
    g = torch.tensor(1 / g)
    theirs = _e2m1_and_ufp8sf_scale_to_float_cpu(codes, scales.view(torch.uint8), 1 / g, 16, 1, is_sf_swizzled_layout=False)
    for name in ("flashinfer_exact", "flashinfer_fast"):
        assert equal_with_nan(decode(Nvfp4(codes, scales, g, name), torch.float32), theirs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", RECIPES)
def test_the_table_decodes_what_plain_torch_decodes(name, dtype):
    """Any byte in any place, sizes across the chunk boundary, a global scale an expert."""
    generator = torch.Generator().manual_seed(2)
    blocks = codec._DECODE_BLOCKS + 24
    codes = torch.randint(0, 256, (2, blocks, 8), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, (2, blocks, 1), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
    encoded = Nvfp4(codes, scales, torch.tensor([3.7e-4, 91.0]), name)
    assert equal_with_nan(decode(encoded, dtype), decode_plain(encoded, dtype))


def test_decode_into_a_buffer_and_from_torchs_own_dtype():
    encoded = encode(weights(torch.bfloat16))
    out = torch.empty(encoded.shape, dtype=torch.bfloat16)
    assert decode(Nvfp4(as_native(encoded.codes), encoded.scales, encoded.global_scale), out=out) is out
    assert same(out, decode(encoded))


@pytest.mark.parametrize("name", RECIPES)
def test_chunks_experts_and_rows_change_nothing(name, monkeypatch):
    """A stack with one global scale an expert is the experts one by one; a row on its own is the row in its tensor."""
    w = weights(torch.bfloat16).view(2, 128, 512) * torch.tensor([1.0, 0.25], dtype=torch.bfloat16).view(2, 1, 1)
    g = torch.tensor([0.0004, 0.0001]) if name == "modelopt" else torch.tensor([2500.0, 10000.0])
    together = encode(w, name, g)
    for i in range(2):
        alone = encode(w[i], name, g[i])
        assert same(together[i].codes, alone.codes) and same(together[i].scales, alone.scales)
    monkeypatch.setattr(codec, "_ENCODE_BLOCKS", 7)
    assert same(encode(w, name, g).codes, together.codes)
    per_token = encode(w, name, per_token=True)
    assert per_token.global_scale.shape == (2, 128)
    row = encode(w[1, 5:6], name, per_token=True)
    assert same(per_token.codes[1, 5:6], row.codes) and same(per_token.global_scale[1, 5:6], row.global_scale)
    assert decode(per_token).isfinite().all(), "a row of zeros among the rows"


@pytest.mark.parametrize("name", RECIPES)
def test_error_of_ordinary_numbers(name):
    """Half a step of the coarsest binade (1 of 6) plus half a step of E4M3 (1/16) bounds every element of a block, by its largest."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(3))
    error = (decode(encode(x, name), torch.float32) - x).abs().unflatten(-1, (-1, 16)).amax(-1)
    bound = x.abs().unflatten(-1, (-1, 16)).amax(-1) * (1 / 6 + 1 / 16) * (1 + 1 / 16)
    assert (error <= bound).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_decoded_numbers_encode_to_themselves(data):
    """Idempotence on blocks that hold a 6: encode(decode(encode(x))) gives the same numbers, for any scale in the normal range."""
    name = data.draw(st.sampled_from(sorted(RECIPES)))
    rows = data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 1 << 30))
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))
    g = torch.tensor(2.0 ** data.draw(st.integers(-8, 8)))
    g = g / 256 if name == "modelopt" else 256 / g
    once = encode(x, name, g)
    largest = (unpack(once.codes) & 7).unflatten(-1, (-1, 16)).amax(-1)
    normal = (largest == 7) & (once.scales.float() >= 2.0**-6) & (once.scales.float() < 448)
    numbers = decode(once, torch.float32)
    again = decode(encode(numbers, name, g), torch.float32)
    keep = normal.repeat_interleave(16, -1)
    assert torch.equal(again[keep], numbers[keep])


def test_what_zeros_become():
    """Where the recipes part: the scale of a block of zeros, the code of -0.0, and the scale of a block too small for E4M3."""
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 16:32], x[0, 32] = 1.0, -0.0, -1e-9
    expected = {
        "modelopt": ([448.0, 1.0, 2.0**-9, 1.0], 0, 8),
        "compressed_tensors": ([448.0, 0.125, 0.125, 0.125], 0, 8),
        "flashinfer_exact": ([448.0, 0.0, 0.0, 0.0], 8, 15),
        "flashinfer_fast": ([448.0, 0.0, 0.0, 0.0], 8, 8),
    }
    for name, (scales, code_of_negative_zero, code_of_tiny) in expected.items():
        encoded = encode(x, name)
        codes = unpack(encoded.codes)
        assert encoded.scales.float().tolist() == [scales], name
        assert codes[0, 16:32].unique().tolist() == [code_of_negative_zero], name
        assert codes[0, 32] == code_of_tiny, name


def test_recipes_disagree_on_ordinary_bfloat16_weights_by_a_measured_little():
    w = weights(torch.bfloat16)[48:]
    w[0, 0] = 0.1328125  # 2688 / 0.1328125 is no BF16 number
    base = encode(w, "modelopt")
    share = {}
    for name in RECIPES:
        other = encode(w, name)
        share[name] = (
            (other.scales.view(torch.uint8) != base.scales.view(torch.uint8)).float().mean().item(),
            (other.codes != base.codes).float().mean().item(),
        )
    assert share["modelopt"] == (0.0, 0.0)
    assert 0.001 < share["compressed_tensors"][0] < 0.1
    assert 0 < share["flashinfer_exact"][1] < 0.01
    assert 0 < share["flashinfer_fast"][1] < 0.01


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 24), "K=24 in shape (2, 24) is not a multiple of the block of 16"),
        (torch.zeros(2, 17), "K=17"),
        (torch.zeros(0, 16), "nothing to encode"),
        (torch.zeros(2, 16, dtype=torch.float64), "float64"),
        (torch.full((2, 16), float("nan")), "NaN or Inf in block 0"),
        (torch.tensor([[1.0] * 31 + [float("inf")]]), "block 1 (elements 16 to 31)"),
        (torch.zeros(2, 16), "global scale 0.0"),
    ],
)
def test_encode_refuses(x, words):
    with pytest.raises(InputError) as error:
        encode(x, "modelopt", name="layers.3.experts.7.up_proj.weight")
    assert words in str(error.value)
    assert str(error.value).startswith("layers.3.experts.7.up_proj.weight")


@pytest.mark.parametrize("g", [0.0, -1.0, math.inf, math.nan])
def test_encode_refuses_a_global_scale_that_cannot_scale(g):
    with pytest.raises(InputError, match="global scale"):
        encode(torch.ones(1, 16), "flashinfer_exact", g)


def test_encode_names_the_nearest_recipe():
    with pytest.raises(UsageError, match="did you mean modelopt"):
        encode(torch.ones(1, 16), "model_opt")


def test_every_recipe_but_modelopt_takes_a_tensor_of_zeros():
    for name in set(RECIPES) - {"modelopt"}:
        assert decode(encode(torch.zeros(2, 32), name)).abs().max() == 0


def parts(**changes) -> Nvfp4:
    good = encode(torch.ones(4, 64))
    return Nvfp4(**({"codes": good.codes, "scales": good.scales, "global_scale": good.global_scale} | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codes": torch.zeros(4, 12, dtype=torch.uint8)}, "K=24, not a multiple"),
        ({"codes": torch.zeros(4, 32, dtype=torch.int32)}, "codes are torch.int32"),
        ({"codes": torch.zeros(0, 32, dtype=torch.uint8)}, "nothing to decode"),
        ({"scales": torch.zeros(4, 4, dtype=torch.float16)}, "block scales are torch.float16 (4, 4), expected float8_e4m3fn (4, 4)"),
        ({"scales": torch.zeros(4, 2).to(torch.float8_e4m3fn)}, "block scales have shape (4, 2), expected (4, 4)"),
        ({"global_scale": torch.tensor(0.0)}, "global scale 0.0"),
        ({"global_scale": torch.ones(3)}, "global scale is torch.float32 (3,), expected float32 [] or a prefix of (4,)"),
        ({"global_scale": torch.tensor(1.0, dtype=torch.float16)}, "global scale is torch.float16"),
    ],
)
def test_check_names_tensor_file_and_both_shapes(changes, words):
    with pytest.raises(InputError) as error:
        check(parts(**changes), "experts.0.w1", "model-00001.safetensors")
    assert words in str(error.value)
    assert "experts.0.w1 in model-00001.safetensors" in str(error.value)


def test_check_recognises_a_transposed_scale():
    encoded = encode(torch.ones(8, 64))
    with pytest.raises(InputError, match="its transpose"):
        check(Nvfp4(encoded.codes, encoded.scales.T, encoded.global_scale))
