"""The reference layer against the arithmetic written out, against FlashInfer's own reference, and the tolerance against both kinds
of implementation: correct ones that round in another order, and wrong ones."""

import weakref

import pytest
import torch

from helpers.errors import InputError, UsageError
from helpers.nvfp4 import compare
from helpers.nvfp4.codec import Nvfp4, decode, encode
from helpers.nvfp4.faults import FAULTS, diagnose, diagnose_expert
from helpers.nvfp4.layouts import join_w13, swizzle_128x4
from helpers.nvfp4.moe import SWIGLU_OAI, Activation, Expert, Precision, collapse_globals, expert_outputs, maximum, moe

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 48, 256, 128, 6, 2
SILU, RELU2, GELU = Activation(), Activation("relu2"), Activation("gelu_tanh")
PRECISIONS = {
    "w4a16": (Precision("w4a16"), (None, None)),
    "w4a4": (Precision("w4a4"), (4.5 / 2688, 6 / 2688)),
    "w4a4_per_token": (Precision("w4a4_per_token"), (None, None)),
    "w4a8": (Precision("w4a8"), (4.5 / 448, None)),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix(rows: int, cols: int, seed: int) -> torch.Tensor:
    return (torch.randn(rows, cols, generator=generator(seed)) * cols**-0.5).bfloat16()


def expert(seed: int, gated: bool = True) -> Expert:
    gate = encode(matrix(INNER, HIDDEN, seed)) if gated else None
    return Expert(gate, encode(matrix(INNER, HIDDEN, seed + 100)), encode(matrix(HIDDEN, INNER, seed + 200)))


def layer(gated: bool = True, seed: int = 1):
    x = torch.randn(TOKENS, HIDDEN, generator=generator(seed)).bfloat16()
    weights, ids = torch.softmax(torch.randn(TOKENS, EXPERTS, generator=generator(seed + 1)), -1).topk(TOP_K)
    return x, [expert(i, gated) for i in range(EXPERTS)], ids, weights


def another_implementation(x, experts, ids, weights, activation, precision, scales, k=32, top_k_in=torch.float32):
    """The same layer token by token: K in pieces of ``k``, experts added up in ``top_k_in``, the result in bfloat16."""

    def product(a, w):
        w = decode(w, torch.float32)
        total = torch.zeros(a.shape[0], w.shape[0])
        for start in range(0, a.shape[1], k):
            total += a[:, start : start + k] @ w[:, start : start + k].T
        return total

    rows = []
    for token in range(len(x)):
        total = torch.zeros(1, HIDDEN, dtype=top_k_in)
        for slot in range(ids.shape[1]):
            part = experts[ids[token, slot]]
            a, _ = precision.round(x[token : token + 1], scales[0])
            hidden = activation(product(a, part.gate) if part.gate else None, product(a, part.up))
            hidden, _ = precision.round(hidden, scales[1])
            total += (product(hidden, part.down) * weights[token, slot]).to(top_k_in)
        rows.append(total)
    return torch.cat(rows).bfloat16()


@pytest.mark.parametrize("activation", [SILU, SWIGLU_OAI, RELU2, GELU], ids=["silu", "swiglu_oai", "relu2", "gelu_tanh"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_correct_implementations_are_accepted_and_a_scale_off_by_one_percent_is_not(name, activation):
    precision, scales = PRECISIONS[name]
    x, experts, ids, weights = layer(activation.gated)
    reference = moe(x, experts, ids, weights, activation=activation, precision=precision, input_scales=scales, spread=True)
    sigma = compare.deviation(reference)
    other = another_implementation(x, experts, ids, weights, activation, precision, scales)
    assert compare.by(other, reference.output, sigma).accepted
    assert not compare.by(other.float() * 1.01, reference.output, sigma).accepted


def test_experts_added_up_in_bfloat16_need_and_get_the_wider_tolerance():
    x, experts, ids, weights = layer()
    reference = moe(x, experts, ids, weights, spread=True)
    other = another_implementation(x, experts, ids, weights, SILU, Precision(), (None, None), top_k_in=torch.bfloat16)
    assert compare.by(other, reference.output, compare.deviation(reference, added_in_bfloat16=TOP_K)).accepted
    assert not compare.by(other, reference.output, compare.deviation(reference)).accepted


def test_flashinfers_own_test_would_accept_a_scale_error_of_30_percent():
    x, experts, ids, weights = layer()
    reference = moe(x, experts, ids, weights, spread=True)
    wrong = (reference.output * 1.3).bfloat16()
    accepted, share = compare.flashinfer_moe_test_accepts(wrong, reference.output)
    assert accepted and share == 1.0
    ours = compare.by(wrong, reference.output, compare.deviation(reference))
    assert not ours.accepted
    assert ours.within < 0.05 and ours.ratio > 50
    assert ours.cosine > 0.9999, "a cosine cannot see a scale"


def test_the_arithmetic_written_out():
    """One expert, one token, W4A4: decode, quantise x, product, SwiGLU, quantise the float32 result, product, router weight."""
    x, experts, *_ = layer()
    fc1, fc2 = torch.rand(EXPERTS, generator=generator(9)) * 0.001 + 0.001, torch.rand(EXPERTS, generator=generator(10)) * 0.001 + 0.001
    ids = torch.full((TOKENS, 1), 3)
    quarter = torch.full((TOKENS, 1), 0.25)
    out = moe(x, experts, ids, quarter, precision=Precision("w4a4"), input_scales=(fc1, fc2)).output
    part = experts[3]
    gate, up, down = (decode(w, torch.float32) for w in (part.gate, part.up, part.down))
    a = decode(encode(x, "flashinfer_exact", 1 / fc1[3]), torch.float32)
    hidden = torch.nn.functional.silu(a @ gate.T) * (a @ up.T)
    expected = decode(encode(hidden, "flashinfer_exact", 1 / fc2[3]), torch.float32) @ down.T * 0.25
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)
    from_bf16 = decode(encode(hidden.bfloat16(), "flashinfer_exact", 1 / fc2[3]), torch.float32) @ down.T * 0.25
    assert (out - from_bf16).abs().max() > 1e-3, "rounding to bfloat16 first is another layer"


def test_swiglu_oai_is_gpt_oss():
    gate, up = torch.randn(64, 64, generator=generator()) * 8, torch.randn(64, 64, generator=generator(1)) * 8
    clamped = gate.clamp(max=7.0)
    expected = (up.clamp(-7.0, 7.0) + 1) * (clamped * torch.sigmoid(clamped * 1.702))
    torch.testing.assert_close(SWIGLU_OAI(gate, up), expected)


def test_gate_and_up_keep_their_own_global_scales():
    x, experts, *_ = layer()
    up = experts[0].up
    louder = Expert(experts[0].gate, Nvfp4(up.codes, up.scales, up.global_scale * 2), experts[0].down)
    ids = torch.zeros(4, 1, dtype=torch.long)
    once = moe(x[:4], experts, ids, torch.ones(4, 1)).output
    twice = moe(x[:4], [louder], ids, torch.ones(4, 1)).output
    torch.testing.assert_close(twice, 2 * once)


def test_collapsing_two_global_scales():
    gate, up = encode(matrix(INNER, HIDDEN, 0)), encode(matrix(INNER, HIDDEN, 1) * 1.37)
    first = collapse_globals(gate, up, "first")
    ratio = float(gate.global_scale / up.global_scale)
    torch.testing.assert_close(decode(first[1], torch.float32), decode(up, torch.float32) * ratio)
    together = collapse_globals(gate, up, "maximum")
    assert together[0].global_scale == together[1].global_scale == torch.maximum(gate.global_scale, up.global_scale)
    assert torch.equal(decode(together[1]), decode(up))
    cost = compare.sqnr_db(decode(gate, torch.float32), decode(together[0], torch.float32))
    assert 25 < cost < 45, "rounding the scales again costs what one E4M3 rounding costs"
    with pytest.raises(UsageError, match="way to collapse"):
        collapse_globals(gate, up, "mean")


def test_expert_parallel_ranks_add_up():
    x, experts, ids, weights = layer()
    whole = moe(x, experts, ids, weights).output
    ranks = sum(moe(x, experts, ids, weights, held=range(start, start + 2)).output for start in (0, 2, 4))
    torch.testing.assert_close(ranks, whole)


def test_one_input_scale_for_all_is_the_largest():
    x, experts, ids, weights = layer()
    each = torch.linspace(0.5, 2.0, EXPERTS) * 4.5 / 2688
    assert maximum(each) == pytest.approx(2 * 4.5 / 2688)
    precision = Precision("w4a4")
    shared = moe(x, experts, ids, weights, precision=precision, input_scales=(maximum(each), 6 / 2688)).output
    assert torch.equal(
        shared, moe(x, experts, ids, weights, precision=precision, input_scales=(each.max().expand(EXPERTS), 6 / 2688)).output
    )
    assert not torch.equal(shared, moe(x, experts, ids, weights, precision=precision, input_scales=(each, 6 / 2688)).output)


def test_one_expert_in_memory_at_a_time():
    x, experts, ids, weights = layer()
    alive = []

    def load(number: int) -> Expert:
        assert not [one for one in alive if one() is not None], "the expert before is still held"
        part = expert(number)
        alive.append(weakref.ref(part))
        return part

    assert torch.equal(moe(x, load, ids, weights).output, moe(x, experts, ids, weights).output)
    assert len(alive) == len(ids.unique())


def test_flashinfers_reference_is_accepted():
    """Its w4a16 reference runs on a CPU. It leaves the activations in float32, where a kernel must round them to bfloat16."""
    from flashinfer.trace.templates.moe import _b12x_fused_moe_reference

    x, experts, ids, weights = layer()
    scaled = [(join_w13(e.gate.codes, e.up.codes, "up_gate"), join_w13(e.gate.scales, e.up.scales, "up_gate")) for e in experts]
    # It takes one global scale for gate and up: give both gate's.
    same = [Expert(e.gate, Nvfp4(e.up.codes, e.up.scales, e.gate.global_scale), e.down) for e in experts]
    theirs = _b12x_fused_moe_reference(
        x,
        torch.stack([w for w, _ in scaled]),
        torch.stack([s for _, s in scaled]),
        torch.stack([e.down.codes for e in experts]),
        torch.stack([e.down.scales for e in experts]),
        ids,
        weights,
        EXPERTS,
        TOP_K,
        w1_alpha=torch.stack([e.gate.global_scale for e in same]),
        w2_alpha=torch.stack([e.down.global_scale for e in same]),
        quant_mode="w4a16",
    )
    reference = moe(x, same, ids, weights, precision=Precision("float32"), spread=True)
    assert compare.by(theirs, reference.output, compare.deviation(reference)).accepted


# Errors by group ------------------------------------------------------------------------------------------------------


def test_errors_by_row_tile_and_expert_find_the_place():
    x, experts, ids, weights = layer()
    reference = moe(x, experts, ids, weights, spread=True)
    sigma, output = compare.deviation(reference), reference.output.clone()
    output[7] *= 1.1
    rows = compare.by(output, reference.output, sigma, tile=(1, HIDDEN))
    assert rows.accepted.shape == (TOKENS, 1)
    assert (~rows.accepted).nonzero()[:, 0].tolist() == [7]
    output = reference.output.clone()
    output[32:, 64:128] += 1
    tiles = compare.by(output, reference.output, sigma, tile=(32, 64))
    assert tiles.accepted.shape == (2, 4)
    assert (~tiles.accepted).nonzero().tolist() == [[1, 1]]
    parts = list(expert_outputs(x, experts, ids, spread=True))
    outputs = {part.expert: part.output * (1.05 if part.expert == 4 else 1) for part in parts}
    assert [number for number, errors in compare.by_expert(outputs, parts).items() if not errors.accepted] == [4]


def test_a_nan_is_never_accepted():
    reference = moe(*layer(), spread=True)
    output = reference.output.clone()
    output[0, 0] = float("nan")
    assert not compare.by(output, reference.output, compare.deviation(reference)).accepted


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_caught_by_name_and_by_the_layer(name):
    original = matrix(INNER, HIDDEN, 0) * torch.logspace(-1, 0, INNER).unsqueeze(1).bfloat16()
    sound = encode(original)
    assert diagnose(sound, original).fault == ""
    broken = FAULTS[name].inject(sound)
    found = diagnose(broken, original)
    assert found.fault == name
    assert found.found_db < found.expected_db - 5
    x, experts, ids, _ = layer()
    experts[2] = Expert(sound, experts[2].up, experts[2].down)
    reference = list(expert_outputs(x, experts, ids, spread=True))
    experts[2] = Expert(broken, experts[2].up, experts[2].down)
    outputs = {part.expert: part.output for part in expert_outputs(x, experts, ids)}
    assert [number for number, errors in compare.by_expert(outputs, reference).items() if not errors.accepted] == [2]


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.undo])
def test_undo_undoes(name):
    sound = encode(matrix(INNER, HIDDEN, 0))
    assert swizzle_128x4(sound.scales).shape == sound.scales.shape, "no padding to lose a byte in"
    again = FAULTS[name].undo(FAULTS[name].inject(sound))
    assert torch.equal(decode(again, torch.float32), decode(sound, torch.float32)) or name == "reciprocal global scale"
    torch.testing.assert_close(decode(again, torch.float32), decode(sound, torch.float32))


def test_swapped_gate_and_up_are_named():
    gate, up = matrix(INNER, HIDDEN, 0), matrix(INNER, HIDDEN, 1)
    down = encode(matrix(HIDDEN, INNER, 2))
    assert diagnose_expert(Expert(encode(gate), encode(up), down), gate, up).fault == ""
    assert diagnose_expert(Expert(encode(up), encode(gate), down), gate, up).fault == "gate and up swapped"
    assert diagnose_expert(Expert(encode(up), encode(up), down), gate, up).fault == "unknown"


# What is refused ------------------------------------------------------------------------------------------------------


def test_bad_layers_are_refused():
    x, experts, ids, weights = layer()
    with pytest.raises(InputError, match="routing names expert 6, and the layer has experts 0 to 5"):
        moe(x, experts, torch.full_like(ids, 6), weights)
    with pytest.raises(InputError, match="relu2 has no gate projection"):
        moe(x, experts, ids, weights, activation=RELU2)
    with pytest.raises(UsageError, match="static input scale"):
        moe(x, experts, ids, weights, precision=Precision("w4a4"))
    with pytest.raises(UsageError, match="unknown activation 'swish'"):
        Activation("swish")
    with pytest.raises(UsageError, match="unknown precision 'w8a8'"):
        Precision("w8a8")
    part = experts[0]
    with pytest.raises(InputError, match=r"down: shape \(128, 256\), expected \(256, 128\)"):
        Expert(part.gate, part.up, part.up)
    empty = Nvfp4(torch.zeros(0, HIDDEN // 2, dtype=torch.uint8), part.up.scales[:0], part.up.global_scale)
    with pytest.raises(InputError, match="up: codes have shape"):
        Expert(None, empty, part.down)


def test_tf32_is_refused():
    x, experts, ids, weights = layer()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(UsageError, match="highest"):
            moe(x, experts, ids, weights)
    finally:
        torch.set_float32_matmul_precision(before)
