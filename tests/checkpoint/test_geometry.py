"""The geometry of real configurations, and what one rank gets of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.errors import InputError, UsageError


def geometry(**config):
    return from_configs("x", config).geometry


BASE = {"num_hidden_layers": 4, "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("name", "layers", "moe", "hidden", "inner", "experts", "top_k", "shared", "block"),
    [
        ("nvidia--Qwen3.5-397B-A17B-NVFP4", 60, 60, 4096, 1024, 512, 10, (1, 1024), "mlp.experts"),
        ("qwen3.5-397b-v2-config", 60, 60, 4096, 1024, 512, 10, (1, 1024), "mlp.experts"),
        ("nvidia--Qwen3-235B-A22B-NVFP4", 94, 94, 4096, 1536, 128, 8, (0, 0), "mlp.experts"),
        ("nvidia--DeepSeek-V3.1-NVFP4", 61, 58, 7168, 2048, 256, 8, (1, 2048), "mlp.experts"),
        ("nvidia--DeepSeek-V4-Pro-NVFP4", 61, 61, 7168, 3072, 384, 6, (1, 3072), "ffn.experts"),
        ("nvidia--GLM-5.2-NVFP4", 78, 75, 6144, 2048, 256, 8, (1, 2048), "mlp.experts"),
        ("nvidia--Kimi-K2.5-NVFP4", 61, 60, 7168, 2048, 384, 8, (1, 2048), "mlp.experts"),
        ("nvidia--MiniMax-M2.5-NVFP4", 62, 62, 3072, 1536, 256, 8, (0, 0), "block_sparse_moe.experts"),
        ("nvidia--MiniMax-M3-NVFP4", 60, 57, 6144, 3072, 128, 4, (1, 3072), "block_sparse_moe.experts"),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 52, 23, 2688, 1856, 128, 6, (1, 3712), "mixer.experts"),
        ("nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", 52, 23, 2688, 1856, 128, 6, (1, 3712), "mixer.experts"),
        ("nvidia--Gemma-4-26B-A4B-NVFP4", 30, 30, 2816, 704, 128, 8, (0, 0), "experts"),
    ],
)
def test_real_configurations(name, layers, moe, hidden, inner, experts, top_k, shared, block):
    made = open_checkpoint(name).geometry
    assert (made.layers, len(made.moe_layers), made.hidden, made.intermediate) == (layers, moe, hidden, inner)
    assert (made.experts, made.top_k, (made.shared_experts, made.shared_intermediate), made.block) == (experts, top_k, shared, block)
    assert made.gated == (made.activation != "relu2") == ("Nemotron" not in name)


def test_dense_models_have_no_expert_geometry():
    assert open_checkpoint("nvidia--Qwen3.6-27B-NVFP4").geometry is None
    assert open_checkpoint("nvidia--Gemma-4-31B-IT-NVFP4").geometry is None
    assert geometry(num_hidden_layers=2, hidden_size=8) is None


@pytest.mark.parametrize(
    ("rule", "moe_layers"),
    [
        ({}, (0, 1, 2, 3)),
        ({"first_k_dense_replace": 1}, (1, 2, 3)),
        ({"decoder_sparse_step": 2}, (1, 3)),
        ({"mlp_only_layers": [0, 2]}, (1, 3)),
        ({"moe_layer_freq": [0, 1, 1, 0]}, (1, 2)),
        ({"moe_layer_freq": 2}, (0, 2)),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 1}, (1, 2, 3)),
        ({"interleave_moe_layer_step": 2}, (1, 3)),
        ({"moe_layers": [0, 3]}, (0, 3)),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, (1, 2)),
        ({"hybrid_override_pattern": "ME*E"}, (1, 3)),
        ({"hybrid_override_pattern": "M-*E"}, (3,)),
        ({"layers_block_type": ["mamba", "moe", "attention", "moe"], "num_hidden_layers": None}, (1, 3)),
    ],
)
def test_which_layers_have_experts(rule, moe_layers):
    made = geometry(**{**BASE, **rule})
    assert (made.moe_layers, made.layers) == (moe_layers, 4)


@pytest.mark.parametrize("key", ["num_experts", "n_routed_experts", "num_local_experts"])
@pytest.mark.parametrize("top_k", ["num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token"])
@pytest.mark.parametrize("inner", ["moe_intermediate_size", "intermediate_size"])
@pytest.mark.parametrize("nesting", [None, "text_config", "llm_config", "language_config"])
def test_every_spelling_of_a_key(key, top_k, inner, nesting):
    text = {"num_hidden_layers": 2, "hidden_size": 8, key: 4, top_k: 3, inner: 16}
    made = geometry(**({nesting: text} if nesting else text))
    assert (made.experts, made.top_k, made.intermediate, made.hidden, made.layers) == (4, 3, 16, 8, 2)


def test_the_moe_size_wins_over_the_dense_one_and_llama4_has_a_shared_expert_of_its_own():
    assert geometry(**BASE, intermediate_size=999).intermediate == 32
    made = geometry(**BASE, model_type="llama4_text")
    assert (made.shared_experts, made.shared_intermediate, made.block) == (1, 32, "feed_forward.experts")


def test_shared_experts_may_come_with_a_width_or_a_number():
    assert (geometry(**BASE, n_shared_experts=2).shared_experts, geometry(**BASE, n_shared_experts=2).shared_intermediate) == (2, 64)
    assert geometry(**BASE, shared_expert_intermediate_size=0).shared_experts == 0
    assert geometry(**BASE, n_shared_experts=None).shared_experts == 0


def test_a_latent_width_is_what_the_experts_see():
    made = geometry(**BASE, moe_latent_size=16)
    assert (made.hidden, made.expert_hidden) == (64, 16)
    assert geometry(**BASE, moe_latent_size=None).expert_hidden == 64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts": "eight"}, "num_experts is 'eight', not a whole number"),
        ({"num_experts": 8.0}, "num_experts is 8.0, not a whole number"),
        ({"num_experts": True}, "num_experts is True, not a whole number"),
        ({"num_experts": -8}, "num_experts is -8, not a whole number"),
        ({"hidden_size": [64]}, "hidden_size is [64], not a whole number"),
        ({"hidden_size": None}, "has experts but no hidden_size"),
        ({"num_experts_per_tok": None}, "has experts but no num_experts_per_tok or "),
        ({"moe_intermediate_size": None}, "has experts but no moe_intermediate_size or "),
        ({"num_hidden_layers": None}, "has experts but no num_hidden_layers or "),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3, not a list"),
        ({"hybrid_override_pattern": 3}, "hybrid_override_pattern is 3, not a list"),
        ({"layers_block_type": {"a": 1}}, "layers_block_type is {'a': 1}, not a list"),
        ({"mlp_layer_types": "sparse"}, "mlp_layer_types is 'sparse', not a list"),
        ({"moe_layers": ["a"]}, "moe_layers is ['a'], not a list of layer numbers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ],
)
def test_a_wrong_dimension_is_one_line_that_names_the_key(change, says):
    with pytest.raises(InputError) as caught:
        geometry(**{**BASE, **change})
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_one_rank_gets():
    made = open_checkpoint("qwen3.5-397b-v2-config").geometry
    assert [made.local_intermediate(8, ep) for ep in (1, 2, 4, 8)] == [128, 256, 512, 1024]
    assert [made.local_experts(ep) for ep in (1, 2, 8)] == [512, 256, 64]


@given(tp=st.integers(-2, 70), ep=st.integers(-2, 70))
def test_a_rank_gets_a_whole_part_or_there_is_an_error_that_names_the_numbers(tp, ep):
    made = geometry(**BASE)
    try:
        local = made.local_intermediate(tp, ep)
    except UsageError as error:
        assert tp < 1 or ep < 1 or tp % ep or 32 % (tp // ep)
        assert str(tp) in str(error) or str(ep) in str(error)
    else:
        assert local * tp == 32 * ep
    try:
        experts = made.local_experts(ep)
    except UsageError as error:
        assert (ep < 1 or 8 % ep) and str(ep) in str(error)
    else:
        assert experts * ep == 8


def test_the_error_says_which_numbers_do_not_divide_and_which_would():
    made = open_checkpoint("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4").geometry
    with pytest.raises(UsageError) as caught:
        made.local_intermediate(3, 1)
    assert "intermediate size 1856 into 3 parts" in str(caught.value) and "1, 2, 4, 8, 16, 29, 32, 58, 64" in str(caught.value)
    with pytest.raises(UsageError, match=r"ep=3 does not divide tp=8; choose ep from 1, 2, 4, 8"):
        made.local_intermediate(8, 3)
    with pytest.raises(UsageError, match=r"ep=3 does not divide the 128 experts"):
        made.local_experts(3)
