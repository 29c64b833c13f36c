"""The kernels that no machine here can run: their arguments are checked against the library's own signatures and layouts."""

import inspect
from dataclasses import replace

import pytest
import torch

from helpers.kernels import flashinfer_moe, inputs
from helpers.kernels.geometry import Block
from helpers.kernels.runners import RUNNERS
from helpers.nvfp4.layouts import unswizzle_128x4

BLOCK = Block("small", 256, 128, 4, 2)
flashinfer = pytest.importorskip("flashinfer")


@pytest.fixture(scope="module")
def experts():
    made = inputs.synthetic(BLOCK)
    return replace(made, first_input=torch.full((4,), 0.002), second_input=torch.full((4,), 0.004))


@pytest.fixture
def given():
    return inputs.tokens(6, BLOCK), inputs.routing("random", 6, BLOCK)


def recorder(calls, function, result):
    """Stands in for a function of the library: refuses arguments that it would not take, and keeps the rest."""
    signature = inspect.signature(function)

    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        calls.append(bound.arguments)
        return result(bound.arguments)

    return call


def test_tokens_go_to_their_experts_and_come_back():
    x = torch.arange(6.0).unsqueeze(1) + 1
    ids = torch.tensor([[0, 2], [2, 1], [0, 1], [2, 0], [1, 2], [0, 2]])
    grouped, taken, place = flashinfer_moe.by_expert(x, ids, 4)
    assert taken.tolist() == [4, 3, 5, 0] and grouped.shape == (4, 6, 1)
    assert grouped[0, :4, 0].tolist() == [1, 3, 4, 6] and (grouped[3] == 0).all()
    assert torch.equal(grouped.reshape(24, 1)[place].view(6, 2), x.expand(6, 2))


def test_the_wrapper_gets_what_sglang_gives_it(monkeypatch, experts, given):
    from flashinfer.quantization.kernels import nvfp4_quantize as quantise

    made, run, quantised = [], [], []
    wrapper = flashinfer.CuteDslMoEWrapper
    run_call = recorder(run, partial_self(wrapper.run), lambda a: torch.zeros(6, 256, dtype=torch.bfloat16))
    stub = type("Stub", (), {"run": staticmethod(run_call)})
    monkeypatch.setattr(flashinfer, "CuteDslMoEWrapper", recorder(made, wrapper, lambda a: stub()))
    packed = lambda a: (torch.zeros(6, 128, dtype=torch.uint8), torch.zeros(6, 16, dtype=torch.uint8))  # noqa: E731
    monkeypatch.setattr(quantise, "nvfp4_quantize_cute_dsl", recorder(quantised, quantise.nvfp4_quantize_cute_dsl, packed))
    x, routing = given
    assert RUNNERS["cutedsl_moe_wrapper"].prepare(experts)(x, routing.ids, routing.weights).shape == (6, 256)
    assert (made[0]["num_experts"], made[0]["top_k"], made[0]["hidden_size"], made[0]["intermediate_size"]) == (4, 2, 256, 128)
    assert made[0]["quant_mode"] == "w4a4" and made[0]["local_expert_offset"] == 0
    got = run[0]
    assert got["x_sf"].shape == (6, 16) and got["x_sf"].dtype == torch.float8_e4m3fn
    assert got["w1_weight"].shape == (4, 256, 128) and got["w2_weight"].shape == (4, 256, 64)
    assert got["w1_weight_sf"].shape == (32, 4, 2, 4, 4, 4) and got["w2_weight_sf"].shape == (32, 4, 2, 4, 2, 4)
    assert torch.allclose(got["w1_alpha"], experts.up.global_scale * 0.002)
    assert torch.allclose(got["fc2_input_scale"], torch.tensor([250.0])), "a multiplier: one over what the checkpoint stores"
    assert torch.allclose(quantised[0]["global_scale"], torch.tensor([500.0])) and quantised[0]["sf_layout"] == 2


def partial_self(method):
    """A method's signature without self."""

    def call(*args, **kwargs): ...

    signature = inspect.signature(method)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return call


def test_the_masked_gemms_get_what_sglang_gives_them(monkeypatch, experts, given):
    from flashinfer.cute_dsl import blockscaled_gemm

    products, first, second = [], [], []
    rows = 6
    codes = lambda k: (torch.zeros(rows, k // 2, 4, dtype=torch.uint8), torch.zeros(32, 4, 1, 4, k // 64, 4))  # noqa: E731
    monkeypatch.setattr(
        flashinfer, "scaled_fp4_grouped_quantize", recorder(first, flashinfer.scaled_fp4_grouped_quantize, lambda a: codes(256))
    )
    silu = flashinfer.silu_and_mul_scaled_nvfp4_experts_quantize
    monkeypatch.setattr(flashinfer, "silu_and_mul_scaled_nvfp4_experts_quantize", recorder(second, silu, lambda a: codes(128)))
    gemm = recorder(products, blockscaled_gemm.grouped_gemm_nt_masked, lambda a: a["out"].zero_())
    monkeypatch.setattr(blockscaled_gemm, "grouped_gemm_nt_masked", gemm)
    x, routing = given
    assert RUNNERS["grouped_gemm_masked"].prepare(experts)(x, routing.ids, routing.weights).shape == (6, 256)
    up, down = products
    assert up["rhs"][0].shape == (256, 128, 4) and down["rhs"][0].shape == (256, 64, 4)
    assert up["out"].shape == (6, 256, 4) and down["out"].shape == (6, 256, 4)
    assert torch.allclose(up["kwargs"]["alpha"].flatten(), experts.up.global_scale * 0.002)
    assert torch.allclose(down["kwargs"]["alpha"].flatten(), experts.down.global_scale * 0.004)
    assert up["masked_m"].dtype == torch.int32 and up["masked_m"].sum() == 12


@pytest.mark.parametrize("kernel", ["b12x_w4a16_moe", "b12x_w4a4_moe"])
def test_b12x_gets_up_first_and_swizzled_scales(monkeypatch, experts, given, kernel):
    calls = []
    monkeypatch.setattr(flashinfer, "b12x_fused_moe", recorder(calls, flashinfer.b12x_fused_moe, lambda a: a["output"]))
    x, routing = given
    RUNNERS[kernel].prepare(experts)(x, routing.ids, routing.weights)
    (got,) = calls
    assert torch.equal(got["w1_weight"][:, :128], experts.up.codes) and torch.equal(got["w1_weight"][:, 128:], experts.gate.codes)
    scales = unswizzle_128x4(got["w2_weight_sf"].view(torch.uint8), 256, 8)
    assert torch.equal(scales, experts.down.scales.view(torch.uint8))
    assert got["num_experts"] == 4 and got["top_k"] == 2
    if kernel == "b12x_w4a4_moe":
        assert torch.allclose(got["w2_alpha"], experts.down.global_scale * 0.004), "the second input scale is not folded in by the library"
        assert torch.equal(got["w1_alpha"], experts.up.global_scale), "the first one is"


def test_a_rank_gets_its_map(monkeypatch, experts, given):
    calls = []
    monkeypatch.setattr(flashinfer, "b12x_fused_moe", recorder(calls, flashinfer.b12x_fused_moe, lambda a: a["output"]))
    x, routing = given
    mapping = torch.tensor([0, 1, 2, 3, -1, -1, -1, -1], dtype=torch.int32)
    RUNNERS["b12x_w4a16_moe"].prepare(experts, mapping)(x, routing.ids, routing.weights)
    assert calls[0]["num_experts"] == 8 and calls[0]["num_local_experts"] == 4 and calls[0]["expert_map"] is mapping
