"""Routing of real exports and public configurations: each module's method, by release."""

import pytest

from helpers.checkpoint import from_configs, known_checkpoints, open_checkpoint
from helpers.deployment import RELEASES, release
from helpers.stages.detect import detect
from helpers.stages.modules import FAMILIES
from helpers.stages.route import route

NVFP4 = "ModelOptNvFp4FusedMoEMethod"


def routed(name, version):
    checkpoint = open_checkpoint(name) if isinstance(name, str) else name
    on = release(version)
    return route(checkpoint, detect(checkpoint, on), on)


def module(routing, prefix):
    return next(entry for entry in routing.modules if entry.prefix == prefix)


def test_the_experts_of_the_mixed_export_get_the_same_method_as_a_flat_one():
    """PR 30443's point, on both sides of it."""
    for version in ("0.5.15", "0.5.16", "0.5.23"):
        mixed, flat = routed("qwen3.5-moe-mixed", version), routed("qwen3-moe-nvfp4", version)
        assert mixed.expert_kinds == flat.expert_kinds == {("NVFP4", NVFP4)}


def test_one_layer_of_the_mixed_export_step_by_step():
    entry = module(routed("qwen3.5-moe-mixed", "0.5.16"), "model.language_model.layers.0.mlp.experts")
    assert (entry.algo, entry.method, entry.matched, entry.how) == ("NVFP4", NVFP4, entry.prefix, "exact")
    steps = entry.steps(release("0.5.16"))
    assert steps[0].answer == entry.prefix
    assert steps[-1].answer == NVFP4
    assert all("sglang 0.5.16" in step.source for step in steps)


@pytest.mark.parametrize(
    ("name", "version", "prefix", "method"),
    [
        ("qwen3.5-moe-mixed", "0.5.16", "model.language_model.layers.0.linear_attn.in_proj_qkvz", "ModelOptFp8LinearMethod"),
        ("qwen3.5-moe-mixed", "0.5.16", "model.language_model.layers.0.linear_attn.in_proj_ba", "UnquantizedLinearMethod"),
        ("qwen3.5-moe-mixed", "0.5.16", "model.language_model.layers.0.mlp.shared_expert.gate_up_proj", "ModelOptFp8LinearMethod"),
        ("qwen3.5-moe-mixed", "0.5.14", "model.language_model.layers.0.mlp.experts", "W4AFp8MoEMethod"),
        ("qwen3.5-moe-w4a16-mixed", "0.5.16", "model.language_model.layers.0.mlp.experts", NVFP4),
        ("qwen3.5-moe-w4a16-mixed", "0.5.16", "lm_head", "ModelOptNvFp4A16LinearMethod"),
        ("qwen3-moe-mixed-fp8-layer", "0.5.16", "model.layers.0.mlp.experts", NVFP4),
        ("qwen3-moe-mixed-fp8-layer", "0.5.16", "model.layers.1.mlp.experts", "ModelOptFp8MoEMethod"),
        ("qwen3-moe-nvfp4", "0.5.14", "lm_head", "UnquantizedEmbeddingMethod"),
        ("qwen3-moe-nvfp4", "0.5.15", "lm_head", "UnquantizedLinearMethod"),
        ("qwen3-moe-nvfp4-experts", "0.5.16", "model.layers.0.self_attn.qkv_proj", "UnquantizedLinearMethod"),
        ("qwen3-moe-w4a16", "0.5.19", "model.layers.0.self_attn.o_proj", "ModelOptNvFp4A16LinearMethod"),
        ("deepseek-v3-mixed", "0.5.16", "model.layers.1.mlp.experts", NVFP4),
        ("deepseek-v3-mixed", "0.5.16", "model.layers.0.mlp.gate_up_proj", "UnquantizedLinearMethod"),
        ("nemotron-h-mixed-repaired", "0.5.16", "model.layers.0.mixer.in_proj", "ModelOptFp8LinearMethod"),
        ("nemotron-h-mixed", "0.5.16", "model.layers.0.mixer.in_proj", "ModelOptFp8LinearMethod"),
        ("minimax-m2-nvfp4", "0.5.16", "model.layers.0.block_sparse_moe.experts", NVFP4),
        ("llama4-nvfp4", "0.5.16", "model.layers.0.feed_forward.experts", NVFP4),
        ("gemma4-nvfp4", "0.5.16", "model.layers.0.moe.experts", NVFP4),
        ("glm-moe-dsa-nvfp4", "0.5.16", "model.layers.1.self_attn.attn_mqa", "ModelOptFp8KVCacheMethod"),
        ("deepseek-v4-hybrid-config", "0.5.16", "model.layers.0.mlp.experts", NVFP4),
        ("deepseek-v4-hybrid-config", "0.5.13.post1", "model.layers.0.mlp.experts", "Fp8MoEMethod"),
        ("w4afp8-bare-config", "0.5.16", "model.layers.3.mlp.experts", "W4AFp8MoEMethod"),
    ],
)
def test_bundled_checkpoints(name, version, prefix, method):
    assert module(routed(name, version), prefix).method == method


def test_every_bundled_checkpoint_routes_in_every_release():
    for name, description in known_checkpoints().items():
        if "nvidia--" in name or description.startswith("public"):
            continue
        for known in RELEASES:
            routing = routed(name, known.version)
            assert routing.error or routing.modules, (name, known.version)


def test_flat_qwen3_5_keeps_attention_in_bf16_until_0_5_16():
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": []}
    text = {"num_hidden_layers": 4, "full_attention_interval": 4, "num_experts": 8, "model_type": "qwen3_5_moe_text"}
    model = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text, "quantization_config": section}
    checkpoint = from_configs("q", model)
    early, late = routed(checkpoint, "0.5.16"), routed(checkpoint, "0.5.17")
    for name in ("layers.0.linear_attn.out_proj", "layers.3.self_attn.qkv_proj"):
        assert module(early, f"model.language_model.{name}").method == "UnquantizedLinearMethod"
        assert module(late, f"model.language_model.{name}").method == "ModelOptFp4LinearMethod"
    assert "model.language_model.layers.3.self_attn.attn" not in {entry.prefix for entry in early.modules}


def test_a_mixed_algorithm_is_served_from_its_release():
    first = {"MXFP8": ("0.5.17", "0.5.17"), "FP8_PB_WO": ("0.5.18", "0.5.21"), "FP8_BLOCK_SCALES": ("0.5.20", "0.5.20")}
    for algorithm, (linear, experts) in first.items():
        layers = {
            "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
            "model.layers.1.mlp.experts": {"quant_algo": algorithm},
            "model.layers.1.self_attn.o_proj": {"quant_algo": algorithm},
        }
        section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_quant_algo": None}
        model = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2, "num_experts": 4, "quantization_config": section}
        checkpoint = from_configs(algorithm, model)
        for known in RELEASES:
            if not known.at_least("0.5.15"):
                continue
            routing = routed(checkpoint, known.version)
            block, projection = module(routing, "model.layers.1.mlp.experts"), module(routing, "model.layers.1.self_attn.o_proj")
            assert (block.method == "Fp8MoEMethod") == known.at_least(experts), (algorithm, known.version)
            assert (projection.method == "Fp8LinearMethod") == known.at_least(linear), (algorithm, known.version)
            served = known.at_least(linear) and known.at_least(experts)
            assert ("route.algorithm_without_method" in {f.id for f in routing.findings}) == (not served)


def test_an_nvfp4_embedding_is_served_from_0_5_18():
    layers = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}, "model.embed_tokens": {"quant_algo": "NVFP4"}}
    section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_quant_algo": None}
    model = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1, "num_experts": 4, "quantization_config": section}
    checkpoint = from_configs("embed", model)
    for version, method in (("0.5.17", "UnquantizedEmbeddingMethod"), ("0.5.18", "ModelOptNvFp4EmbeddingMethod")):
        assert module(routed(checkpoint, version), "model.embed_tokens").method == method


def test_every_architecture_is_named_once():
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(names) == len(set(names))


def test_an_unknown_architecture_abstains_and_keeps_the_checkpoints_names():
    section = {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "quantized_layers": {"m.0.experts.0.w1": {"quant_algo": "NVFP4"}, "m.0.proj": {"quant_algo": "FP8"}},
    }
    routing = routed(from_configs("new", {"architectures": ["Tomorrow"], "quantization_config": section}), "0.5.16")
    assert not routing.known
    assert [(entry.prefix, entry.method) for entry in routing.modules] == [("m.0.experts", NVFP4), ("m.0.proj", "ModelOptFp8LinearMethod")]
    assert [(f.id, f.severity) for f in routing.findings] == [("route.model_class_unknown", "abstained")]


public = pytest.mark.skipif(
    not any(name.startswith("nvidia--") for name in known_checkpoints()), reason="needs the [configs] extra: public configurations"
)


@public
def test_minimax_m3_is_found_from_0_5_17():
    """sglang#31827: up to 0.5.16 the map's block_sparse_moe names are not found, and the packed experts stop the load."""
    early, late = routed("nvidia--MiniMax-M3-NVFP4", "0.5.16"), routed("nvidia--MiniMax-M3-NVFP4", "0.5.17")
    assert early.expert_kinds == {(None, "UnquantizedFusedMoEMethod")}
    assert {(f.id, f.severity) for f in early.findings} >= {("route.name_not_found", "fails_to_load")}
    assert late.expert_kinds == {("NVFP4", NVFP4)}
    assert not any(f.severity == "fails_to_load" for f in late.findings)
    assert not routed("nvidia--MiniMax-M3-NVFP4", "0.5.15").known


@public
def test_kimis_excludes_are_read_without_their_prefix():
    routing = routed("nvidia--Kimi-K2.6-NVFP4", "0.5.16")
    assert module(routing, "model.layers.0.mlp.gate_up_proj").excluded_by == "model.layers.0*"
    assert module(routing, "model.layers.1.mlp.experts").method == NVFP4


@public
def test_glm_5_2_shares_its_indexer_from_0_5_18():
    wanted = "model.layers.3.self_attn.indexer.wq_b"
    assert wanted in {entry.prefix for entry in routed("nvidia--GLM-5.2-NVFP4", "0.5.17").modules}
    assert wanted not in {entry.prefix for entry in routed("nvidia--GLM-5.2-NVFP4", "0.5.18").modules}


@public
def test_no_public_nvfp4_checkpoint_is_misread_by_the_newest_release():
    """The two Nemotron files are stubs of the package that ships them: they have no excludes and no group size."""
    stubs = ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4")
    for name in known_checkpoints():
        if name.startswith("nvidia--") and name.endswith("NVFP4") and name not in stubs:
            routing = routed(name, "0.5.23")
            assert routing.known, name
            assert not [f for f in routing.findings if f.severity != "note"], name
