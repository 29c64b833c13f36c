"""Name matching: the prepared lookups give what a plain scan over the lists gives, and the published traps stay traps."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.deployment import release
from helpers.errors import InputError
from helpers.stages.names import Excludes, LayerAlgorithms, Mapper, Unloadable, candidates_of

PARTS = ("model", "language_model", "layers", "mlp", "experts", "self_attn", "q_proj", "gate_up_proj", "0", "1", "12", "3")
names = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(".".join)
globs = st.lists(st.sampled_from((*PARTS, "*", "exp*", "*proj", "1*")), min_size=1, max_size=4).map(".".join)


def scanned_exclude(patterns, prefix):
    """The first pattern that matches the prefix or one of its parts, by regular expressions, one after another."""
    variants = [prefix, *([prefix.removeprefix("language_model.")] if prefix.startswith("language_model.") else [])]
    for pattern in patterns:
        expression = re.compile(pattern.replace(".", r"\.").replace("*", ".*"))
        for variant in variants:
            if any(expression.fullmatch(text) for text in (variant, *variant.split("."))):
                return pattern
    return None


def scanned_algorithm(layers, prefix):
    if prefix in layers:
        return layers[prefix]["quant_algo"]
    return next((entry["quant_algo"] for key, entry in layers.items() if key.startswith(prefix + ".")), None)


@settings(max_examples=400, deadline=None)
@given(st.lists(globs, max_size=8), names)
def test_excludes_find_what_a_scan_finds(patterns, prefix):
    found = Excludes(patterns).excluded_by(prefix)
    assert (found.pattern if found else None) == scanned_exclude(patterns, prefix)


@settings(max_examples=400, deadline=None)
@given(st.lists(names, min_size=1, max_size=12, unique=True), names)
def test_the_index_finds_the_first_child_in_the_order_of_the_file(keys, prefix):
    layers = {key: {"quant_algo": f"A{position}"} for position, key in enumerate(keys)}
    assert LayerAlgorithms(layers).resolve(prefix, {}).algorithm == scanned_algorithm(layers, prefix)


@pytest.mark.parametrize(
    ("pattern", "prefix", "matched"),
    [
        ("model.layers.1*", "model.layers.12.mlp.experts", "model.layers.12.mlp.experts"),
        ("3", "model.layers.3.mlp.experts", "3"),
        ("experts", "model.layers.3.mlp.experts", "experts"),
        ("model", "model.layers.3.mlp.experts", "model"),
        ("model.layers.3", "model.layers.3.mlp.experts", None),
        ("re:.*experts.*", "model.layers.3.mlp.experts", None),
        ("model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.experts", None),
        ("lm_head", "language_model.lm_head", "lm_head"),
        ("model.layers.0.self_attn.q_a_proj", "model.layers.7.self_attn.fused_qkv_a_proj_with_mqa", None),
        (
            "model.layers.0.self_attn.kv_a_proj_with_mqa",
            "model.layers.7.self_attn.fused_qkv_a_proj_with_mqa",
            "fused_qkv_a_proj_with_mqa",
        ),
        ("model.layers.0.self_attn.q_b_proj", "model.layers.7.self_attn.q_b_proj", "q_b_proj"),
    ],
)
def test_what_an_exclude_reaches(pattern, prefix, matched):
    found = Excludes([pattern]).excluded_by(prefix)
    assert (found.matched if found else None) == matched


def test_a_skipped_name_counts_on_dotted_borders_only():
    excludes = Excludes(["mlp.gate"])
    assert excludes.skipped_by("model.layers.0.mlp.gate", {})
    assert excludes.skipped_by("model.layers.0.mlp.gate_up_proj", {}) is None
    assert Excludes(["model.layers.0."]).skipped_by("model.layers.0.mlp.down_proj", {})
    assert Excludes(["model.layers.0."], strip_dots=False).skipped_by("model.layers.0.mlp.down_proj", {}) is None


def test_a_fused_module_is_skipped_with_all_its_parts_or_not_at_all():
    packed = {"in_proj_qkvz": ("in_proj_qkv", "in_proj_z")}
    whole = Excludes(["m.in_proj_qkv", "m.in_proj_z"])
    assert whole.skipped_by("m.in_proj_qkvz", packed).pattern == "m.in_proj_qkv"
    with pytest.raises(Unloadable, match=r"Detected some but not all shards of m\.qkv_proj are quantized"):
        Excludes(["m.q_proj"]).skipped_by("m.qkv_proj", {})


def test_an_expert_name_that_contains_the_prefix_skips_it():
    assert Excludes(["x.mlp.experts.down_proj.weight"]).skipped_by("mlp.experts.down_proj", {}).pattern == "x.mlp.experts.down_proj.weight"


def test_packed_parts_with_two_algorithms_raise():
    layers = LayerAlgorithms({"a.q_proj": {"quant_algo": "FP8"}, "a.k_proj": {"quant_algo": "nvfp4"}})
    with pytest.raises(Unloadable) as raised:
        layers.resolve("a.qkv_proj", {"qkv_proj": ("q_proj", "k_proj")})
    assert raised.value.error == "ValueError"
    assert raised.value.message == (
        "Mixed quant_algo within fused layer a.qkv_proj: {'FP8', 'NVFP4'}. All shards must use the same quantization."
    )


def test_a_partly_listed_fused_module_takes_the_listed_part():
    found = LayerAlgorithms({"a.k_proj": {"quant_algo": "fp8"}}).resolve("a.qkv_proj", {"qkv_proj": ("q_proj", "k_proj")})
    assert (found.algorithm, found.key, found.how) == ("FP8", "a.k_proj", "packed")


def test_an_entry_without_algorithm_is_sglangs_key_error():
    with pytest.raises(Unloadable, match="'quant_algo'"):
        LayerAlgorithms({"a": {}}).resolve("a", {})


@pytest.mark.parametrize(
    ("prefix", "key", "found_in"),
    [
        ("model.layers.3.mlp.experts", "model.layers.3.mlp.experts", ("0.5.14", "0.5.19", "0.5.20")),
        ("language_model.model.layers.3.mlp.experts", "model.language_model.layers.3.mlp.experts", ("0.5.19", "0.5.20")),
        ("model.language_model.layers.3.mlp.experts", "language_model.model.layers.3.mlp.experts", ("0.5.19", "0.5.20")),
        ("model.layers.3.mlp.experts", "model.language_model.layers.3.mlp.experts", ("0.5.20",)),
        ("model.language_model.layers.3.mlp.experts", "model.layers.3.mlp.experts", ("0.5.20",)),
        ("model.layers.3.mlp.experts", "language_model.model.layers.3.mlp.experts", ()),
        ("language_model.model.layers.3.mlp.experts", "model.layers.3.mlp.experts", ()),
        ("language_model.lm_head", "lm_head", ("0.5.19", "0.5.20")),
        ("model.layers.3.block_sparse_moe.experts", "model.layers.3.mlp.experts", ()),
        ("model.layers.48.mlp.experts", "mtp.layers.0.mlp.experts", ()),
    ],
)
def test_which_names_are_tried(prefix, key, found_in):
    layers = LayerAlgorithms({f"{key}.0.gate_proj": {"quant_algo": "NVFP4"}})
    for version in ("0.5.14", "0.5.19", "0.5.20"):
        found = layers.resolve(prefix, {}, candidates=candidates_of(release(version)))
        assert (found.algorithm is not None) == (version in found_in), version


def test_the_mapper_applies_the_longest_entry_of_each_table_once():
    mapper = Mapper(substr={".a.": ".b."}, prefix={"model.": "m.", "model.x.": "y."})
    assert mapper.rename("model.x.a.a.w") == "y.b.a.w"
    assert mapper.rename("model.z.w") == "m.z.w"
    assert mapper.rename_excludes(["language_model.lm_head"]) == ["language_model.lm_head", "lm_head"]


@pytest.mark.parametrize("patterns", [3, True, [1], "lm_head", {"lm_head": 1}])
def test_an_exclude_list_that_is_none_is_one_line(patterns):
    with pytest.raises(InputError, match="not a list of names; restore"):
        Excludes(patterns)
