"""The check itself: a right kernel passes for what it rounds, and nothing else passes."""

from dataclasses import replace

import pytest
import torch

from helpers.errors import UsageError
from helpers.kernels import checks, inputs
from helpers.kernels.geometry import Block
from helpers.kernels.runners import RUNNERS, W4A16
from helpers.nvfp4.codec import decode

BLOCK = Block("small", 256, 128, 12, 3)
PLAIN = ("torch_w4a16", "torch_w4a4")


@pytest.fixture(scope="module")
def experts():
    return inputs.synthetic(BLOCK)


@pytest.fixture(scope="module")
def given():
    return inputs.tokens(64, BLOCK), inputs.routing("random", 64, BLOCK, seed=1)


def reference(experts, given, runner, roundings=None):
    roundings = roundings or runner.roundings(64)
    return checks.reference(checks.layer(experts, *given, runner.precision, roundings), roundings, BLOCK.top_k)


@pytest.mark.parametrize("kernel", PLAIN)
@pytest.mark.parametrize("kind", inputs.ROUTINGS)
@pytest.mark.parametrize("count", [1, 64])
def test_the_plain_kernels_are_right(experts, kernel, kind, count):
    given = inputs.tokens(count, BLOCK), inputs.routing(kind, count, BLOCK, seed=1)
    x, routing = given
    output = RUNNERS[kernel].prepare(experts)(x, routing.ids, routing.weights)
    found = checks.errors(output, reference(experts, given, RUNNERS[kernel]))
    assert found["accepted"] and found["cosine"] > 0.99999, found


def test_an_activation_without_a_gate_is_right_too():
    block = Block("nemotron", 256, 128, 12, 3, "relu2")
    experts, given = inputs.synthetic(block), (inputs.tokens(16, block), inputs.routing("random", 16, block))
    for kernel in PLAIN:
        output = RUNNERS[kernel].prepare(experts)(given[0], given[1].ids, given[1].weights)
        assert checks.errors(output, reference(experts, given, RUNNERS[kernel]))["accepted"]


def rounded_everywhere(experts, x, routing):
    """A kernel that rounds as b12x does, written out: both products, silu, the router's weight, its product, and each partial sum."""

    def r(value):
        return value.bfloat16().float()

    output = torch.zeros(x.shape)
    for slot in range(BLOCK.top_k):
        for token, e in enumerate(routing.ids[:, slot].tolist()):
            gate, up, down = (decode(part, torch.float32) for part in vars(experts[e]).values())
            row = x[token].float()
            hidden = r(r(torch.nn.functional.silu(r(gate @ row))) * r(up @ row))
            output[token] = r(output[token] + r(r(down @ hidden) * r(routing.weights[token, slot])))
    return output.bfloat16()


def test_a_kernel_passes_for_what_it_rounds_and_not_for_less(experts, given):
    output = rounded_everywhere(experts, *given)
    all_of_it = checks.Roundings(preactivation=True, activated=True, contribution=3, sums=True)
    runner = RUNNERS["torch_w4a16"]
    assert checks.errors(output, reference(experts, given, runner, all_of_it))["accepted"]
    for less in ({"preactivation": False, "activated": False}, {"contribution": 0, "sums": False}):
        assert not checks.errors(output, reference(experts, given, runner, replace(all_of_it, **less)))["accepted"], less


def test_a_kernel_that_rounds_agrees_with_one_that_does_not(experts, given):
    rounding, plain = checks.Roundings(preactivation=True, activated=True, contribution=3, sums=True), RUNNERS["torch_w4a16"]
    outputs = rounded_everywhere(experts, *given), plain.prepare(experts)(given[0], given[1].ids, given[1].weights)
    references = reference(experts, given, plain, rounding), reference(experts, given, plain)
    assert checks.between(*outputs, *references)["accepted"]
    assert not checks.between(outputs[0] * 1.02, outputs[1], *references)["accepted"]


def test_roundings_only_ever_widen_the_tolerance(experts, given):
    runner = RUNNERS["torch_w4a16"]
    sigmas = [
        reference(experts, given, runner, checks.Roundings(contribution=n, sums=sums)).sigma
        for n, sums in ((0, False), (2, False), (2, True))
    ]
    assert (sigmas[0] < sigmas[1]).all() and (sigmas[1] < sigmas[2]).all()


@pytest.mark.parametrize("fault", checks.FAULTS)
@pytest.mark.parametrize("kernel", PLAIN)
def test_every_fault_is_noticed(experts, given, kernel, fault):
    x, routing = given
    output = RUNNERS[kernel].prepare(checks.inject(fault, experts))(x, routing.ids, routing.weights)
    assert not checks.errors(output, reference(experts, given, RUNNERS[kernel]))["accepted"]


def test_an_unknown_fault_gets_a_suggestion(experts):
    with pytest.raises(UsageError, match="gate and up swapped"):
        checks.inject("gate and up swap", experts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_number_that_is_none_fails_the_whole(experts, given, bad):
    x, routing = given
    runner = RUNNERS["torch_w4a16"]
    output = runner.prepare(experts)(x, routing.ids, routing.weights)
    output[3, 5] = bad
    found = checks.errors(output, reference(experts, given, runner))
    assert found["not_finite"] == 1 and not found["accepted"]


def test_the_expert_that_is_wrong_is_found_alone(experts, given):
    x, routing = given
    runner, alone = RUNNERS["torch_w4a16"], checks.one_expert_a_token(routing)
    expected = reference(experts, (x, alone), runner)
    first = alone.ids[:, 0].tolist()
    spoiled = list(range(len(experts)))
    spoiled[first[0]] = (first[0] + 1) % len(experts)
    wrong = replace(experts, up=experts.up[spoiled])
    right, bad = (
        checks.per_expert(runner.prepare(e)(x, alone.ids, alone.weights), expected, alone, runner.roundings(64)) for e in (experts, wrong)
    )
    assert right["accepted"] == right["experts"] == len(set(first))
    assert bad["accepted"] == bad["experts"] - 1 and bad["worst_cosine"] < 0.99


@pytest.mark.parametrize(("off", "accepted"), [(1.005, True), (1.02, False)])
def test_one_row_has_a_bound_and_no_more(experts, given, off, accepted):
    """A rounding that went the other way is no fault; two per cent are."""
    x, routing = given
    runner, alone = RUNNERS["torch_w4a16"], checks.one_expert_a_token(routing)
    expected = reference(experts, (x, alone), runner)
    row = checks.Reference(expected.output[:1], expected.sigma[:1])
    assert not checks.errors(expected.output[:1] * off, row)["accepted"]
    found = checks.per_expert(expected.output[:1] * off, row, checks.Routing(alone.ids[:1], alone.weights[:1]), runner.roundings(64))
    assert (found["accepted"] == 1) is accepted


def test_two_kernels_of_other_precisions_are_not_taken_for_each_other(experts, given):
    x, routing = given
    outputs = [RUNNERS[kernel].prepare(experts)(x, routing.ids, routing.weights) for kernel in PLAIN]
    references = [reference(experts, given, RUNNERS[kernel]) for kernel in PLAIN]
    assert checks.between(*outputs, *references)["accepted"], "each is right for its own reference"
    assert not checks.between(*outputs, references[0], references[0])["accepted"], "their difference is no rounding"
    assert checks.between(outputs[0], outputs[0], references[0], references[0])["cosine"] == pytest.approx(1)


def test_w4a16_and_the_reference_share_the_experts_of_a_rank(experts, given):
    x, routing = given
    mapping = torch.full((12,), -1, dtype=torch.int32)
    mapping[[2, 5]] = torch.tensor([0, 1], dtype=torch.int32)
    held = replace(
        experts, block=replace(BLOCK, experts=2), numbers=(2, 5), **{n: getattr(experts, n)[[2, 5]] for n in ("gate", "up", "down")}
    )
    output = RUNNERS["torch_w4a16"].prepare(held, expert_map=mapping)(x, routing.ids, routing.weights)
    untouched = ~((routing.ids == 2) | (routing.ids == 5)).any(1)
    assert (output[untouched] == 0).all() and (output[~untouched] != 0).any()
    assert W4A16 is RUNNERS["torch_w4a16"].precision
