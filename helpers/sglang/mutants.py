"""Checkpoints that nobody published: a known one's configurations with another quantization written into them.

What is varied is what SGLang reads: algorithms and where they stand, the map's keys and how they are spelt, patterns, and which of
the two JSON copies says it. What stays is that the JSON has the types the formats have.
"""

from collections.abc import Sequence
from random import Random

from helpers.checkpoint import Checkpoint, from_configs

ALGORITHMS = (
    "NVFP4",
    "NVFP4",
    "NVFP4",
    "FP8",
    "FP8",
    "W4A16_NVFP4",
    "NVFP4_AWQ",
    "MXFP8",
    "FP8_PB_WO",
    "FP8_BLOCK_SCALES",
    "nvfp4",
    "INT4_AWQ",
)
FLAT = ("NVFP4", "FP8", "NVFP4_AWQ", "W4A16_NVFP4", "MXFP8", "W4A8_NVFP4_FP8", "MXFP4", "FP8_PB_WO", "nvfp4", "W4A8_AWQ", "mixed_precision")
PATTERNS = (
    "lm_head",
    "*lm_head*",
    "*self_attn*",
    "model.layers.0*",
    "model.layers.1*",
    "*.layers.1.*",
    "model.layers.0.mlp.experts",
    "*mlp.gate",
    "*shared_expert*",
    "*visual*",
    "mtp*",
    "experts",
    "re:.*router.*",
    "model.language_model.layers.1*",
    "*embed_tokens*",
    "language_model.*",
)
# What SGLang loads into one matrix; parts with different algorithms end the load, so most mutants keep them together.
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
# How a key of the map may be spelt for a module that the checkpoint calls `model.…`.
SPELLINGS = (
    lambda name: name,
    lambda name: name,
    lambda name: name,
    lambda name: name.replace("model.", "model.language_model.", 1) if name.startswith("model.layers") else name,
    lambda name: name.replace("model.language_model.", "model.", 1),
    lambda name: "language_model." + name if name.startswith("model.layers") else name,
    lambda name: name.replace("mlp.experts", "block_sparse_moe.experts"),
)


def mutant(checkpoint: Checkpoint, names: Sequence[str], draw: Random) -> Checkpoint:
    """A variation of the checkpoint; names: the checkpoint's names of its modules, expert blocks by their own name."""
    config = {key: value for key, value in checkpoint.config.items() if key not in ("quantization_config", "compression_config")}
    quantization = _mixed(names, draw) if draw.random() < 0.75 else _flat(draw)
    where = draw.choice(("inline", "inline", "file", "both", "differ"))
    inline = where in ("inline", "both", "differ")
    other = _mixed(names, draw) if where == "differ" else quantization
    if inline:
        # A multimodal model's sometimes stands where the language model's config is, and whether SGLang finds it there depends.
        section = {"quantization_config": _inline(quantization, draw)}
        nested = isinstance(config.get("text_config"), dict) and draw.random() < 0.3
        config |= {"text_config": config["text_config"] | section} if nested else section
    hf_quant = _file(other, draw) if where != "inline" else None
    return from_configs(f"mutant of {checkpoint.name}", config, hf_quant)


def _mixed(names: Sequence[str], draw: Random) -> dict:
    """MIXED_PRECISION with an algorithm for each kind of module, and a few that differ from their kind."""
    by_kind = {}
    spelling = draw.choice(SPELLINGS)
    per_expert = draw.random() < 0.4
    stray = draw.choice((0, 0, 0, 0.03))
    layers = {}
    for name in names:
        kind = name.rsplit(".", 1)[-1]
        fused = next((parts for parts in FUSED if kind in parts), (kind,))
        if fused not in by_kind:
            by_kind[fused] = draw.choice((*ALGORITHMS, None, None))
        algorithm = draw.choice(ALGORITHMS) if draw.random() < stray else by_kind[fused]
        if algorithm is None:
            continue
        keys = [f"{name}.{expert}.{part}" for expert in (0, 1) for part in ("gate_proj", "up_proj", "down_proj")]
        for key in keys if kind == "experts" and per_expert else [name]:
            layers[spelling(key)] = _entry(algorithm, draw)
    algorithm = "MIXED_PRECISION" if draw.random() < 0.95 else "mixed_precision"
    return {"quant_algo": algorithm, "quantized_layers": layers, **_rest(draw)}


def _entry(algorithm: str, draw: Random) -> dict:
    return {"quant_algo": algorithm, "group_size": 16} if "FP4" in algorithm.upper() and draw.random() < 0.9 else {"quant_algo": algorithm}


def _flat(draw: Random) -> dict:
    algorithm = draw.choice(FLAT)
    return {"quant_algo": algorithm, **({"group_size": draw.choice((16, 16, 32))} if draw.random() < 0.8 else {}), **_rest(draw)}


def _rest(draw: Random) -> dict:
    rest = {}
    if draw.random() < 0.8:
        rest["exclude"] = draw.sample(PATTERNS, draw.randrange(0, 4))
    if draw.random() < 0.6:
        rest["kv"] = True
    if draw.random() < 0.1:
        rest |= {"moe_quant_algo": draw.choice(("NVFP4", "nvfp4", "FP8")), "group_size": draw.choice((16, None))}
    return rest


def _inline(quantization: dict, draw: Random) -> dict:
    """As config.json has it."""
    written = dict(quantization)
    method = draw.choice(("modelopt", "modelopt", "modelopt", None, "fp8"))
    if method is not None:
        written["quant_method"] = method
    if "exclude" in written:
        written[draw.choice(("ignore", "ignore", "exclude_modules"))] = written.pop("exclude")
    if written.pop("kv", False):
        written["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    return written


def _file(quantization: dict, draw: Random) -> dict:
    """As hf_quant_config.json has it."""
    written = dict(quantization)
    if "exclude" in written:
        written["exclude_modules"] = written.pop("exclude")
    written["kv_cache_quant_algo"] = "FP8" if written.pop("kv", False) else None
    return {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": written}
