"""Checkpoints that hardly anybody publishes: each meets a line of the model that no published one and no variation of one meets.

Every one is a bundled checkpoint with something else written into its two JSON files: a section that is damaged, older or of another
vocabulary, an exclude list that needs care, a field of the model's shape. They are asked like any other checkpoint.
"""

from collections.abc import Iterator

from helpers.checkpoint import Checkpoint, from_configs, open_checkpoint
from helpers.deployment import Release, quantizations

NVFP4 = {"quant_algo": "NVFP4", "group_size": 16}
FP8 = {"quant_algo": "FP8"}
EXPERTS = "model.layers.{}.mlp.experts"
FLOAT8, FLOAT4, INT8 = ({"type": kind, "num_bits": bits} for kind, bits in (("float", 8), ("float", 4), ("int", 8)))
MODELOPT = {"name": "modelopt", "version": "0.47.0"}


def corners() -> tuple[Checkpoint, ...]:
    """All of them; the same ones in the same order on every run."""
    tables = (_sections, _files, _maps, _flat, _native_fp8, _mxfp4, _compressed, _excludes, _shapes, _families)
    return tuple(checkpoint for table in tables for checkpoint in table())


# What is built under a flag as well, where the release has it: a checkpoint that says nothing, or FP8, and is quantised while it is loaded.
_CONVERTED = ("qwen3-moe-mixed, not quantised", "gpt-oss-nvfp4, not quantised", "qwen3-moe-mixed, FP8 in blocks")
_FLAGS = ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "fp8", "mxfp8", "mxfp4", "w4afp8")


def flags_of(checkpoint: Checkpoint, release: Release) -> tuple[str, ...]:
    """The ``--quantization`` flags under which this checkpoint's modules are asked for too."""
    return tuple(flag for flag in _FLAGS if flag in quantizations(release)) if checkpoint.name in _CONVERTED else ()


def _of(base: str, what: str, inline: object = None, file: object = None, **config) -> Checkpoint:
    """The bundled checkpoint with these two sections instead of its own (None: none), and these fields of config.json (None: without)."""
    written = {key: value for key, value in (_plain(base) | config).items() if value is not None}
    if inline is not None:
        written["quantization_config"] = inline
    return from_configs(f"{base}, {what}", written, file)


def _plain(base: str) -> dict:
    """config.json of the bundled checkpoint without its section."""
    return {key: value for key, value in open_checkpoint(base).config.items() if key != "quantization_config"}


def _qwen(what: str, inline: object = None, file: object = None, **config) -> Checkpoint:
    return _of("qwen3-moe-mixed", what, inline, file, **config)


def _map(**others) -> dict:
    """A MIXED_PRECISION section of the two-layer Qwen3: NVFP4 experts, and what else is given by name."""
    layers = {EXPERTS.format(layer): NVFP4 for layer in (0, 1)}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_scheme": FLOAT8} | others


def _sections() -> Iterator[Checkpoint]:
    """Sections that are none, or whose words are no words. detect.py."""
    yield _qwen("not quantised")
    yield _of("gpt-oss-nvfp4", "not quantised")
    yield _qwen("a section that is text", "nvfp4")
    yield _qwen("an older key", compression_config=_groups(Linear=_NVFP4_SCHEME))
    yield _qwen("an algorithm that is a number", {"quant_method": "modelopt", "quant_algo": 4})
    yield _qwen("no algorithm", {"quant_method": "modelopt", "ignore": []})
    yield _qwen("a method that is a number", {"quant_method": 5} | NVFP4)
    yield _qwen("no method that is known", {"quant_method": "nvfp5"} | NVFP4)
    yield _qwen("fp8 with an algorithm that is a number", {"quant_method": "fp8", "activation_scheme": "dynamic", "quant_algo": 4})
    for method in ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "MODELOPT_FP4"):
        for algorithm in ("NVFP4", "FP8"):
            section = {"quant_method": method, "quant_algo": algorithm, "group_size": 16, "ignore": []}
            yield _qwen(f"method {method}, algorithm {algorithm}", section)
    for algorithm in ("NVFP4_AWQ", "W4A16_NVFP4", "MXFP8", "FP8_PB_WO", "W4A8_AWQ", "nvfp4", "FP4"):
        yield _qwen(f"algorithm {algorithm}", {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16, "ignore": []})
    yield _qwen("MXFP8 with an exclude list", {"quant_algo": "MXFP8", "ignore": [EXPERTS.format(0)]})
    yield _qwen("MXFP8 with both exclude lists", {"quant_algo": "MXFP8", "ignore": [], "exclude_modules": [EXPERTS.format(0)]})
    hybrid = {"quant_method": "fp8", "activation_scheme": "dynamic", "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4"}
    for size in (16, "16", "sixteen", [16], None):
        yield _qwen(f"FP8 with NVFP4 experts, group size {size!r}", hybrid | {"group_size": size, "ignore": [EXPERTS.format(0)]})
    yield _qwen("FP8 with experts said to be FP8", hybrid | {"moe_quant_algo": "FP8", "group_size": 16})
    yield _qwen("FP8 flat with experts said to be NVFP4", hybrid | {"quant_algo": "FP8", "group_size": 16})


def _files() -> Iterator[Checkpoint]:
    """hf_quant_config.json as the copy that counts. detect.py, quant_config.py."""
    yield _qwen("a file that is not nested", file=NVFP4 | {"producer": MODELOPT})
    yield _qwen("a file nested twice", file={"quantization": {"quantization": NVFP4}})
    yield _qwen("a file whose section is a list", file={"quantization": [NVFP4]})
    yield _qwen("a file of an unknown producer", file={"producer": {"name": "somebody"}, "quantization": NVFP4 | {"exclude_modules": []}})
    yield _qwen("a producer that is text", file={"producer": "modelopt", "quantization": NVFP4 | {"exclude_modules": []}})
    for algorithm in ("NVFP4", "FP8", "NVFP4_AWQ", "MXFP8", "FP8_PB_WO"):
        section = {"quant_algo": algorithm, "group_size": 16, "exclude_modules": [EXPERTS.format(1)], "kv_cache_quant_algo": "FP8"}
        yield _qwen(f"a file with {algorithm}", file={"producer": MODELOPT, "quantization": section})
    yield _qwen("a file without a group size", file={"producer": MODELOPT, "quantization": FP8 | {"quant_algo": "NVFP4"}})
    sizes = {"config_groups": {"group_0": {"weights": {"group_size": 16}}, "group_1": {"weights": {"group_size": 32}}}}
    for what, groups in (("one size", {"config_groups": {"group_0": sizes["config_groups"]["group_0"], "group_1": []}}), ("two", sizes)):
        section = {"quant_algo": "NVFP4", "exclude_modules": []}
        yield _qwen(f"a file whose groups have {what}", file={"producer": MODELOPT, "quantization": section} | groups)
    named = {"quant_method": "modelopt_mixed"}
    for what, section in (
        ("says nothing", {}),
        ("says null", {"quant_algo": None}),
        ("is FP8", FP8 | {"exclude_modules": []}),
        ("is NVFP4", NVFP4 | {"exclude_modules": []}),
        ("is INT4", {"quant_algo": "INT4_AWQ"}),
        ("has the map", {key: value for key, value in _map().items() if key in ("quant_algo", "quantized_layers")}),
    ):
        yield _qwen(f"mixed by name, and the file {what}", named, {"producer": MODELOPT, "quantization": section})
        yield _qwen(f"mixed by name, and the bare file {what}", named, {"producer": MODELOPT} | section)
    yield _qwen("mixed by name, and a file of nobody", named, {"quantization": _map()})
    file = {"producer": MODELOPT, "quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {EXPERTS.format(1): NVFP4}}}
    for what, section in (
        ("nothing of the KV cache", _map(kv_cache_scheme=None)),
        ("the KV cache's algorithm", _map(kv_cache_quant_algo=None)),
    ):
        section = {key: value for key, value in section.items() if key != "kv_cache_scheme" or value is not None}
        yield _qwen(f"two maps, the inline one says {what}", section, file)
    nemotron = "nemotron-h-nvfp4-repaired"
    for key in ("exclude_modules", "ignore"):
        section = NVFP4 | {key: ["backbone.layers.0*", "lm_head"]}
        yield _of(nemotron, f"only a file, with {key}", file={"producer": MODELOPT, "quantization": section})
        yield _of(nemotron, f"only a bare file, with {key}", file={"producer": MODELOPT} | section)
    yield _of(nemotron, "only a file, without excludes", file={"producer": MODELOPT, "quantization": NVFP4})
    section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"backbone.layers.1.mixer.experts": NVFP4}, "exclude_modules": []}
    yield _of(nemotron, "only a file with a map", file={"producer": MODELOPT, "quantization": section})


def _maps() -> Iterator[Checkpoint]:
    """Maps with entries that are none. quant_config.py, names.py."""
    yield _qwen(
        "an empty map", {"quant_method": "modelopt_mixed", "quant_algo": "MIXED_PRECISION", "quantized_layers": {}, "kv_cache_scheme": {}}
    )
    yield _qwen("a map that is a list", _map(quantized_layers=[EXPERTS.format(0)]))
    attention = "model.layers.0.self_attn.o_proj"
    for what, entry in (
        ("that is text", "FP8"),
        ("that is empty", {}),
        ("whose algorithm is a number", {"quant_algo": 4}),
        ("of lower case", {"quant_algo": "fp8"}),
        ("of MXFP8", {"quant_algo": "MXFP8"}),
    ):
        yield _qwen(f"an entry {what}", _map(quantized_layers={EXPERTS.format(0): NVFP4, attention: entry}))
    blocks = {attention: {"quant_algo": "FP8_PB_WO", "group_size": 128}, "lm_head": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 64}}
    yield _qwen("two sizes of FP8 blocks", _map(quantized_layers={EXPERTS.format(0): NVFP4, **blocks}))
    del blocks["lm_head"]
    for kind in ("W4A16_NVFP4", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8"):
        layers = {EXPERTS.format(0): NVFP4 | {"group_size": 32}, EXPERTS.format(1): {"quant_algo": kind}, "lm_head": {"quant_algo": kind}}
        yield _qwen(f"{kind} experts in one layer", _map(quantized_layers=layers))
    layers = {EXPERTS.format(0): {"quant_algo": "W4A16_NVFP4", "group_size": 32}, EXPERTS.format(1): NVFP4}
    yield _qwen("two group sizes", _map(quantized_layers=layers))
    yield _qwen("NVFP4 embeddings", _map(quantized_layers={EXPERTS.format(0): NVFP4, "model.embed_tokens": NVFP4}))
    both = {EXPERTS.format(0): NVFP4, "model.embed_tokens": NVFP4, "lm_head": FP8}
    yield _qwen("NVFP4 embeddings, excluded", _map(quantized_layers=both, ignore=["model.embed_tokens", "lm_head"]))
    yield _qwen("excludes under the file's name", _map(exclude_modules=[EXPERTS.format(0)]))
    for what, scheme in (
        ("of four bits", {"kv_cache_scheme": FLOAT4}),
        ("by name", {"kv_cache_quant_algo": "FP8", "kv_cache_scheme": None}),
    ):
        layers = {f"model.layers.{layer}.block_sparse_moe.experts": NVFP4 for layer in (0, 1)}
        yield _of("minimax-m2-nvfp4", f"a map with a KV cache {what}", _map(quantized_layers=layers, **scheme))
    layers = {f"model.layers.{layer}.block_sparse_moe.experts": NVFP4 for layer in (0, 1)}
    yield _of(
        "minimax-m2-nvfp4", "a map with a plain KV cache", _map(quantized_layers=layers, kv_cache_quant_algo=None, kv_cache_scheme=None)
    )
    w4a16 = {"backbone.layers.1.mixer.experts.0.up_proj": {"quant_algo": "W4A16_NVFP4"}, "backbone.layers.4.mixer.experts": NVFP4}
    yield _of("nemotron-h-mixed-repaired", "W4A16 experts", _map(quantized_layers=w4a16))
    yield _of("nemotron-h-mixed-repaired", "another activation", _map(quantized_layers=w4a16), mlp_hidden_act="silu")
    for spelling in ("language_model.model.layers.{}", "model.language_model.layers.{}", "model.layers.{}"):
        layers = {f"{spelling.format(layer)}.mlp.experts": NVFP4 for layer in (0, 3)} | {"lm_head": FP8, "model.lm_head": NVFP4}
        layers |= {f"{spelling.format(3)}.self_attn.{part}_proj": FP8 for part in "qkv"}
        layers |= {f"{spelling.format(0)}.self_attn.{part}_proj": FP8 for part in "qkv"}
        yield _qwen(f"keys {spelling.format('N')}", _map(quantized_layers=layers))
        yield _of("qwen3.5-moe-mixed", f"keys {spelling.format('N')}", _map(quantized_layers=layers))


def _flat() -> Iterator[Checkpoint]:
    """Flat ModelOpt sections of a model whose attention is asked for a KV cache method. quant_config.py: _read_fp8, _read_fp4."""
    for algorithm in ("FP8", "NVFP4"):
        plain = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], "group_size": 16}
        for what, cache in (
            ("none", {}),
            ("a float of 8 bits", {"kv_cache_scheme": FLOAT8}),
            ("a float of 4 bits", {"kv_cache_scheme": FLOAT4}),
            ("an integer", {"kv_cache_scheme": INT8}),
            ("a name", {"kv_cache_quant_algo": "FP8"}),
        ):
            yield _of("minimax-m2-nvfp4", f"{algorithm}, KV cache: {what}", plain | cache)
    groups = {"group_0": {"weights": {"group_size": 16}}}
    for what, more in (
        ("no group size", {}),
        ("a group size in a group", {"config_groups": groups}),
        ("no excludes", {"group_size": 16, "ignore": None}),
        (
            "excludes under two other names",
            {"group_size": 16, "modules_to_not_convert": [EXPERTS.format(0)], "exclude_modules": ["lm_head"]},
        ),
    ):
        yield _qwen(f"NVFP4 with {what}", {"quant_method": "modelopt", "quant_algo": "NVFP4"} | more)


def _native_fp8() -> Iterator[Checkpoint]:
    """FP8 in the words of fp8.py."""
    plain = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    for what, section in (
        ("per tensor", plain),
        ("static", plain | {"activation_scheme": "static"}),
        ("in blocks", plain | {"weight_block_size": [128, 128]}),
        ("in blocks, static", plain | {"activation_scheme": "static", "weight_block_size": [128, 128]}),
        ("in blocks of three sizes", plain | {"weight_block_size": [128, 128, 128]}),
        ("of an unknown scheme", plain | {"activation_scheme": "both"}),
        ("of no scheme", {"quant_method": "fp8"}),
        ("with a layer left out", plain | {"ignored_layers": ["model.layers.0.self_attn"]}),
        ("with experts left out", plain | {"modules_to_not_convert": ["layers.0.mlp.experts"]}),
        ("with an expert left out", plain | {"modules_to_not_convert": ["model.layers.0.mlp.experts.0.gate_proj"]}),
        ("of MX blocks", {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}),
        ("of MX blocks, without their size", {"quant_method": "mxfp8", "activation_scheme": "dynamic"}),
        ("of MX blocks, static", {"quant_method": "mxfp8", "activation_scheme": "static", "weight_block_size": [1, 32]}),
    ):
        yield _qwen(f"FP8 {what}", section)


def _mxfp4() -> Iterator[Checkpoint]:
    """MXFP4 throughout, as gpt-oss is published, and for a model whose attention it refuses."""
    yield _of("gpt-oss-nvfp4", "MXFP4", {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    yield _of("minimax-m2-nvfp4", "MXFP4", {"quant_method": "mxfp4"})
    yield _qwen("MXFP4", {"quant_method": "mxfp4"})


def _scheme(bits: int, kind: str, activations: bool = True, **weights) -> dict:
    plain = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "tensor", "dynamic": False} | weights
    return {"weights": plain, "input_activations": plain if activations else None}


_NVFP4_SCHEME = _scheme(4, "float", strategy="tensor_group", group_size=16)


def _groups(ignore: tuple[str, ...] = ("lm_head",), **targets: dict) -> dict:
    """A compressed-tensors section with one group for each target."""
    groups = {f"group_{number}": {"targets": [target]} | scheme for number, (target, scheme) in enumerate(targets.items())}
    return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": groups, "ignore": list(ignore)}


def _compressed() -> Iterator[Checkpoint]:
    """compressed-tensors: what is ignored, and which group a target picks. compressed.py."""
    fp8, nvfp4 = _scheme(8, "float"), _NVFP4_SCHEME
    for what, section in (
        ("no groups", {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": []}),
        ("FP8", _groups(Linear=fp8)),
        ("groups by name", _groups(**{"re:.*self_attn.*": fp8, "re:.*mlp.*": nvfp4})),
        ("two groups, the experts by class", _groups(Linear=fp8, FusedMoE=nvfp4)),
        ("a target that is a module", _groups(**{"model.layers.0.self_attn.o_proj": fp8, "Linear": nvfp4})),
        ("targets that fit nothing", _groups(**{"model.layers.9.mlp": fp8})),
        ("targets that are parts", _groups(**{"re:.*\\.(q|k|v|o)_proj": fp8, "re:.*experts.*": nvfp4})),
        ("targets that are some parts", _groups(**{"re:.*\\.(q|k|o)_proj": fp8, "re:.*experts.*": nvfp4})),
        ("targets that split an expert", _groups(**{"re:.*(gate|up)_proj": fp8, "re:.*down_proj": nvfp4, "Linear": nvfp4})),
        ("an ignored part", _groups(("lm_head", "model.layers.0.self_attn.q_proj"), Linear=nvfp4)),
        ("an ignored fused module", _groups(("lm_head", "model.layers.0.self_attn.qkv_proj"), Linear=nvfp4)),
        ("ignored parts", _groups(("lm_head", "re:.*self_attn.*"), Linear=nvfp4)),
        ("ignored experts", _groups(("lm_head", "re:.*layers.0.*experts.*"), Linear=nvfp4)),
    ):
        yield _qwen(f"compressed-tensors, {what}", section)


def _excludes() -> Iterator[Checkpoint]:
    """Exclude lists that need care. names.py: Excludes."""
    for algorithm in ("NVFP4", "FP8"):
        plain = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16}
        for what, names in (
            ("no regular expression", ["model.layers.[0"]),
            ("live regular expressions", ["model.layers.(0|7).*", "mlp.expert[s]"]),
            ("two stars", ["*layers.*o_proj", "*.0.*experts"]),
            ("a star in the middle", ["model.layers.0*o_proj", "exp*ts"]),
            ("an overlap", ["model.layers.0.self_attn*attn.o_proj"]),
            ("a part with its name alone", ["o_proj", "experts"]),
            ("a run of parts", ["layers.0.self_attn", "1.mlp"]),
            ("trailing dots", ["model.layers.0.self_attn."]),
            ("one of three fused parts", ["model.layers.0.self_attn.q_proj"]),
            ("all fused parts", [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]),
            ("an expert's part", ["model.layers.0.mlp.experts.0.gate_proj"]),
            ("names of another nesting", ["language_model.model.layers.0*", "language_model.lm_head"]),
        ):
            yield _qwen(f"{algorithm}, excludes: {what}", plain | {"ignore": names})
    deepseek, nvfp4 = "deepseek-v3-mixed", {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    for what, names in (
        ("a fused latent part", ["model.layers.0.self_attn.q_a_proj"]),
        ("both latent parts", ["model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.kv_a_proj_with_mqa"]),
        ("a shared expert's weight", ["model.layers.1.mlp.shared_experts.down_proj.weight"]),
        ("nothing", []),
    ):
        yield _of(deepseek, f"excludes: {what}", nvfp4 | {"ignore": names})
    vision = {"vt_hidden_size": 64, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 1, "vt_intermediate_size": 128}
    kimi = {"model_type": "kimi_k25", "text_config": _plain(deepseek), "vision_config": vision}
    for what, names in (
        ("by the checkpoint's names", ["language_model.layers.1*"]),
        ("with a prefix that stands twice", ["language_model.layers.language_model.layers."]),
    ):
        section = {"quantization_config": nvfp4 | {"ignore": names}}
        yield from_configs(f"a Kimi K2.5, excludes: {what}", {"architectures": ["KimiK25ForConditionalGeneration"]} | kimi | section)


def _shapes() -> Iterator[Checkpoint]:
    """Fields of a model's shape that decide which modules there are. modules.py."""
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": []}
    text = open_checkpoint("qwen3.5-moe-mixed").text_config | {"full_attention_interval": 2}
    yield _of("qwen3.5-moe-mixed", "an interval and other kinds of layers", nvfp4, text_config=text)
    yield _qwen("tied embeddings", nvfp4, tie_word_embeddings=True)
    yield _qwen("a dense layer", nvfp4, mlp_only_layers=[0])
    yield _qwen("every second layer sparse", nvfp4, decoder_sparse_step=2)
    for what, fields in (
        ("no low-rank query", {"q_lora_rank": None}),
        ("no shared expert", {"n_shared_experts": 0}),
        ("every second layer sparse", {"moe_layer_freq": 2}),
    ):
        base = open_checkpoint("deepseek-v3-mixed").config | fields
        yield from_configs(f"deepseek-v3-mixed, {what}", {**base, "quantization_config": nvfp4})
    for base in ("deepseek-v3-mixed", "glm-moe-dsa-nvfp4", "qwen3-moe-mixed", "minimax-m2-nvfp4"):
        yield _of(base, "another activation", nvfp4, hidden_act="gelu")
        yield _of(base, "more experts for a token than there are", nvfp4, num_experts_per_tok=99)
    yield _of("nemotron-h-nvfp4-repaired", "latent experts", nvfp4, moe_latent_size=64)
    yield _of("nemotron-h-nvfp4-repaired", "no shared expert", nvfp4, n_shared_experts=0)
    pattern = {"layers_block_type": None, "hybrid_override_pattern": "ME*-"}
    yield _of("nemotron-h-nvfp4-repaired", "a pattern of letters", nvfp4, num_hidden_layers=4, **pattern)
    yield _of("llama4-nvfp4", "every second layer sparse", nvfp4, interleave_moe_layer_step=2, moe_layers=[1])
    yield _of("glm-moe-dsa-nvfp4", "an indexer in some layers, by kind", nvfp4, indexer_types=["full", "shared", "full"], index_topk_freq=3)
    for fields in ({"index_topk_freq": 2}, {"index_topk_pattern": "FSF"}, {"index_topk_freq": 2, "index_skip_topk_offset": 1}):
        fields["indexer_types"] = None
        yield _of("glm-moe-dsa-nvfp4", f"an indexer in some layers: {fields}", nvfp4, **fields)
    yield _of("gpt-oss-nvfp4", "a kind of layer that is none", nvfp4, layer_types=["sliding_attention", "sideways_attention"])
    yield _qwen("no model type", nvfp4, model_type=None)
    yield _qwen("a model type of nobody", nvfp4, model_type="qwen33_moe")
    yield _qwen("a model type of its own code", nvfp4, model_type="qwen33_moe", auto_map={"AutoConfig": "configuration.Config"})


# What every small model has.
_SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
_MOE = _SMALL | {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
_ROUTED = _SMALL | {
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
_LATENT = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
_VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_KDA = {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4, "use_full_rank_gate": True}
# architecture -> (model type, the text model's fields, are they nested?)
_ARCHITECTURES = {
    "LlamaForCausalLM": ("llama", _SMALL, False),
    "Qwen3ForCausalLM": ("qwen3", _SMALL, False),
    "MixtralForCausalLM": ("mixtral", _SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}, False),
    "Qwen3NextForCausalLM": (
        "qwen3_next",
        _MOE | _LINEAR | {"shared_expert_intermediate_size": 64, "full_attention_interval": 2, "num_hidden_layers": 4},
        False,
    ),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe", _MOE | {"model_type": "qwen3_vl_moe_text"}, True),
    "Glm4MoeForCausalLM": ("glm4_moe", _ROUTED | {"use_qk_norm": True}, False),
    "DeepseekV2ForCausalLM": ("deepseek_v2", _ROUTED | _LATENT | {"topk_method": "greedy", "scoring_func": "softmax"}, False),
    "KimiK3ForConditionalGeneration": (
        "kimi_k3",
        _ROUTED
        | _LATENT
        | {
            "model_type": "kimi_linear",
            "linear_attn_config": _KDA,
            "mla_use_output_gate": True,
            "mla_use_nope": True,
            "num_experts": 8,
            "num_shared_experts": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
        },
        True,
    ),
    "Llama4ForConditionalGeneration": (
        "llama4",
        _SMALL
        | {
            "model_type": "llama4_text",
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 256,
            "num_experts_per_tok": 1,
            "use_qk_norm": True,
            "attention_chunk_size": 64,
            "no_rope_layers": [1, 0],
        },
        True,
    ),
    "MiMoV2FlashForCausalLM": ("mimo_v2_flash", _ROUTED | {"hybrid_layer_pattern": [0, 1]}, False),
    "LongcatFlashForCausalLM": (
        "longcat_flash",
        _ROUTED
        | _LATENT
        | {
            "ffn_hidden_size": 128,
            "expert_ffn_hidden_size": 64,
            "num_layers": 2,
            "zero_expert_num": 2,
            "zero_expert_type": "identity",
            "moe_topk": 2,
        },
        False,
    ),
    "Cohere2MoeForCausalLM": ("cohere2_moe", _MOE, False),
    "BeamForCausalLM": ("beam", _MOE, False),
}


# Asked in the words of compressed-tensors too.
_PACKED = {
    "Cohere2MoeForCausalLM": ("packed NVFP4", "packed MXFP4"),
    "KimiK3ForConditionalGeneration": ("packed NVFP4", "packed MXFP4"),
    "MixtralForCausalLM": ("packed NVFP4",),
}


def _families() -> Iterator[Checkpoint]:
    """Architectures that no bundled or public checkpoint has, as small as their classes allow."""
    modelopt = {"quant_method": "modelopt", "group_size": 16}
    layers = {"model.layers.0.mlp.experts": NVFP4}
    layers |= {f"{stem}.layers.0.self_attn.{part}_proj": FP8 for stem in ("model", "language_model.model") for part in "qkvg"}
    sections = {
        "not quantised": None,
        "NVFP4": modelopt | NVFP4 | {"ignore": ["lm_head", "model.layers.0.*"]},
        "mixed": modelopt | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_scheme": FLOAT8},
        "FP8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
    }
    mxfp4 = _scheme(4, "float", activations=False, group_size=32, strategy="group") | {"format": "mxfp4-pack-quantized"}
    mxfp4 = _groups(("lm_head", "re:.*self_attn.*", "re:.*mlp.*_proj"), **{"re:.*experts.*": mxfp4})
    packed = {"packed NVFP4": _groups(Linear=_NVFP4_SCHEME | {"format": "nvfp4-pack-quantized"}), "packed MXFP4": mxfp4}
    for architecture, (model_type, text, nested) in _ARCHITECTURES.items():
        config = {"architectures": [architecture], "model_type": model_type}
        config |= {"text_config": text, "vision_config": _VISION} if nested else text
        for what, section in (sections | {what: packed[what] for what in _PACKED.get(architecture, ())}).items():
            if what == "packed MXFP4" and nested:  # its experts have a class of their own, which is not modelled
                config["text_config"] = text | {"first_k_dense_replace": 2}
            yield from_configs(f"a small {architecture}, {what}", config if section is None else config | {"quantization_config": section})
        if architecture.startswith("Kimi"):
            inside = config | {"text_config": config["text_config"] | {"quantization_config": mxfp4}}
            yield from_configs(f"a small {architecture}, packed MXFP4 in its text model", inside)
