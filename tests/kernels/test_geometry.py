"""The share of a layer's experts that one GPU holds."""

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.errors import UsageError
from helpers.kernels.geometry import NAMED, Block, block_of


def test_a_checkpoint_gives_one_rank_its_share():
    checkpoint = open_checkpoint("qwen3.5-397b-v2-config")
    whole = block_of(checkpoint)
    assert (whole.hidden, whole.intermediate, whole.experts, whole.top_k) == (4096, 1024, 512, 10)
    assert block_of(checkpoint, tp=8).intermediate == 128
    assert block_of(checkpoint, tp=8, ep=8).experts == 64
    assert whole.gated and whole.activation == "silu"


def test_what_does_not_divide_is_said():
    with pytest.raises(UsageError, match="does not divide"):
        block_of(open_checkpoint("qwen3.5-397b-v2-config"), tp=3)


def test_a_width_that_nvfp4_cannot_cut_into_blocks_is_refused():
    with pytest.raises(UsageError, match="hidden is 4100, not a multiple"):
        Block("odd", 4100, 1024, 8, 2)
    with pytest.raises(UsageError, match="experts is 0"):
        Block("none", 4096, 1024, 0, 2)


def test_an_activation_without_a_gate():
    assert not Block("nemotron", 2688, 1856, 128, 6, "relu2").gated
    assert all(block.gated for block in NAMED.values())
