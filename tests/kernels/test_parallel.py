"""Experts shared over two processes give what one process gives; and a share that is wrong does not."""

from dataclasses import replace

import pytest
import torch

from helpers.errors import UsageError
from helpers.kernels import checks, inputs, parallel
from helpers.kernels.geometry import Block
from helpers.kernels.runners import RUNNERS, W4A16

BLOCK = Block("small", 256, 128, 8, 3)


@pytest.fixture(scope="module")
def experts():
    return inputs.synthetic(BLOCK)


@pytest.mark.parametrize("mode", parallel.MODES)
def test_two_processes_give_what_one_gives(mode):
    found = parallel.run(BLOCK, mode, 2, ["torch_w4a16", "torch_w4a4"], [1, 16])
    assert [(r["kernel"], r["tokens"]) for r in found] == [(k, t) for k in ("torch_w4a16", "torch_w4a4") for t in (1, 16)]
    assert all(result["right"] for result in found), found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("mode", parallel.MODES)
def test_the_shares_add_up_to_the_layer(experts, mode, ranks):
    x, routing = inputs.tokens(16, BLOCK), inputs.routing("random", 16, BLOCK)
    total = torch.zeros(16, BLOCK.hidden)
    for rank in range(ranks):
        held = parallel.share(experts, mode, ranks, rank)
        mapped = {"expert_map": parallel.expert_map(held, BLOCK.experts, "cpu")} if mode == "ep" else {}
        total += RUNNERS["torch_w4a16"].prepare(held, **mapped)(x, routing.ids, routing.weights).float()
    roundings = checks.Roundings(contribution=2)
    expected = checks.reference(checks.layer(experts, x, routing, W4A16, roundings), roundings, BLOCK.top_k)
    assert float(checks.compare.by(total, expected.output, expected.sigma).cosine) > 0.99999


def test_a_share_under_the_wrong_numbers_does_not(experts):
    x, routing = inputs.tokens(16, BLOCK), inputs.routing("random", 16, BLOCK)
    held = [parallel.share(experts, "ep", 2, rank) for rank in (0, 1)]
    swapped = [replace(part, numbers=other.numbers) for part, other in zip(held, reversed(held), strict=True)]
    total = sum(
        RUNNERS["torch_w4a16"].prepare(part, expert_map=parallel.expert_map(part, 8, "cpu"))(x, routing.ids, routing.weights).float()
        for part in swapped
    )
    expected = checks.reference(checks.layer(experts, x, routing, W4A16, checks.Roundings()), checks.Roundings(), BLOCK.top_k)
    assert not checks.errors(total, expected)["accepted"]


def test_ranks_that_do_not_divide_the_layer_are_refused(experts):
    with pytest.raises(UsageError, match="experts 8 in 3 parts"):
        parallel.share(experts, "ep", 3, 0)
    with pytest.raises(UsageError, match="output features 128 in 3 parts"):
        parallel.share(experts, "tp", 3, 0)
    with pytest.raises(UsageError, match="unknown way to share experts"):
        parallel.share(experts, "pp", 2, 0)


def test_a_kernel_that_needs_all_experts_cannot_share_them():
    with pytest.raises(UsageError, match="frost_w4a16_moe cannot leave out experts"):
        parallel.run(BLOCK, "ep", 2, ["frost_w4a16_moe"], [1])
