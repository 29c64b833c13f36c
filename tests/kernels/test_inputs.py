"""Experts and routings: shapes, orders, and that no byte of an expert is read that no token reaches."""

import pytest
import torch

from helpers.checkpoint import open_checkpoint
from helpers.errors import InputError, UsageError
from helpers.kernels import inputs
from helpers.kernels.geometry import Block
from helpers.nvfp4.audit.scan import Reader
from helpers.nvfp4.codec import decode
from helpers.nvfp4.layouts import split_w13

BLOCK = Block("small", 256, 128, 12, 3)
EXPORT = "qwen3-moe-nvfp4"


def test_synthetic_experts_have_the_shape_of_their_block():
    experts = inputs.synthetic(BLOCK)
    assert experts.gate.shape == experts.up.shape == (12, 128, 256) and experts.down.shape == (12, 256, 128)
    assert torch.equal(experts.gate.global_scale, experts.up.global_scale)
    assert decode(experts[3].down, torch.float32).std() == pytest.approx(128**-0.5, rel=0.1)


def test_the_same_seed_gives_the_same_experts():
    first, second, other = (inputs.synthetic(BLOCK, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.up.codes, second.up.codes) and not torch.equal(first.up.codes, other.up.codes)


def test_an_activation_without_a_gate_has_no_gate():
    experts = inputs.synthetic(Block("nemotron", 256, 128, 4, 2, "relu2"))
    assert experts.gate is None and experts.w13("gate_up") is experts.up


@pytest.mark.parametrize("order", ["gate_up", "up_gate", "up_gate_64"])
def test_gate_and_up_rows_come_in_the_order_asked_for(order):
    experts = inputs.synthetic(BLOCK)
    joined = experts.w13(order)
    gate, up = split_w13(joined.codes, order)
    assert torch.equal(gate, experts.gate.codes) and torch.equal(up, experts.up.codes)
    gate, up = split_w13(joined.scales.view(torch.uint8), order)
    assert torch.equal(gate, experts.gate.scales.view(torch.uint8)) and torch.equal(up, experts.up.scales.view(torch.uint8))


@pytest.mark.parametrize("kind", inputs.ROUTINGS)
def test_a_routing_names_each_expert_once_a_token(kind):
    routing = inputs.routing(kind, 200, BLOCK)
    assert routing.ids.shape == (200, 3) and routing.ids.dtype == torch.int32
    assert all(len(set(row)) == 3 for row in routing.ids.tolist())
    assert torch.allclose(routing.weights.sum(1), torch.ones(200)) and (routing.weights > 0).all()


def test_the_three_routings_differ_in_how_many_experts_they_hit():
    loads = {kind: inputs.routing(kind, 500, BLOCK).ids.long().flatten().bincount(minlength=12) for kind in inputs.ROUTINGS}
    assert (loads["concentrated"] > 0).sum() == 3, "top-k experts have all tokens, the others none"
    assert (loads["random"] > 0).all()
    assert loads["skewed"].max() > 1.5 * loads["random"].max()


def test_what_cannot_be_routed_is_refused():
    with pytest.raises(InputError, match="top-k 3 of 2 experts"):
        inputs.routing("random", 4, Block("few", 256, 128, 2, 3))
    with pytest.raises(UsageError, match="did you mean random"):
        inputs.routing("randon", 4, BLOCK)
    for count in (0, 8193):
        with pytest.raises(UsageError, match="1 to 8192"):
            inputs.tokens(count, BLOCK)


# From a checkpoint ----------------------------------------------------------------------------------------------------


def test_a_checkpoints_experts_are_what_its_files_hold():
    checkpoint = open_checkpoint(EXPORT)
    layer = checkpoint.geometry.moe_layers[0]
    some, alone = inputs.from_checkpoint(checkpoint, layer, (0, 2, 3)), inputs.from_checkpoint(checkpoint, layer, (2,))
    assert some.block.experts == 3 and some.numbers == (0, 2, 3)
    for part in ("gate", "up", "down"):
        assert torch.equal(getattr(some, part).codes[1], getattr(alone, part).codes[0])
    assert decode(some[1].up, torch.float32).isfinite().all()


def test_only_the_experts_that_are_hit_are_read(monkeypatch):
    read, into = [], Reader.into
    monkeypatch.setattr(Reader, "into", lambda self, buffer, part, start=0: read.append(part.tensor) or into(self, buffer, part, start))
    checkpoint = open_checkpoint(EXPORT)
    layer = checkpoint.geometry.moe_layers[0]
    inputs.from_checkpoint(checkpoint, layer, (1,))
    assert read and all(f"layers.{layer}.mlp.experts.1." in tensor for tensor in read)


def test_two_ranks_have_the_two_halves_of_an_expert():
    checkpoint = open_checkpoint(EXPORT)
    layer = checkpoint.geometry.moe_layers[0]
    whole, half = (inputs.from_checkpoint(checkpoint, layer, (0,), tp=tp) for tp in (1, 2))
    rows = half.block.intermediate
    assert rows * 2 == whole.block.intermediate
    assert torch.equal(half.up.codes, whole.up.codes[:, :rows])
    assert torch.equal(half.down.codes, whole.down.codes[..., : rows // 2])


def test_a_layer_without_experts_is_named_with_those_that_have_some():
    with pytest.raises(InputError, match=r"layer 99 has no NVFP4 experts; layers that have: \["):
        inputs.from_checkpoint(open_checkpoint(EXPORT), 99, (0,))


def test_fused_experts_are_refused_in_one_line():
    checkpoint = open_checkpoint("llama4-nvfp4")
    with pytest.raises(InputError, match="fused in one tensor"):
        inputs.from_checkpoint(checkpoint, checkpoint.geometry.moe_layers[0], (0,))
