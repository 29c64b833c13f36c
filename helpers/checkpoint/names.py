"""What a module's name says by itself: its layer, its kind, and how the names of the checkpoint begin.

A module name here is a tensor's name without its last part (``model.layers.3.mlp.experts.17.gate_proj``). Everything is decided by
the parts between the dots, so the same functions serve the keys of a quantisation map, the exclude patterns and the tensors.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

KINDS = (
    "routed experts",
    "shared experts",
    "router",
    "attention",
    "linear attention",
    "dense mlp",
    "lm_head",
    "embedding",
    "vision",
    "mtp",
    "norm",
    "other",
)

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.|$)")
_EXPERT = re.compile(r"^(.*\.experts|experts)\.(\d+)(?:\.(.*))?$", re.DOTALL)

_TOWERS = frozenset(["visual", "vision", "vision_tower", "vision_model", "vision_encoder", "embed_vision", "audio_tower", "sound_encoder"])
_PROJECTORS = frozenset(["mm_projector", "multi_modal_projector", "patch_merge_mlp", "embed_audio"])
_VISION = _TOWERS | _PROJECTORS
_MTP = frozenset(["mtp", "mtp_block", "nextn", "eh_proj", "enorm", "hnorm"])
_SHARED = frozenset(["shared_experts", "shared_expert", "share_expert", "shared_mlp"])
_ROUTER = frozenset(["gate", "router", "shared_expert_gate"])
_HEAD = frozenset(["lm_head", "head"])
_EMBEDDING = frozenset(["embed_tokens", "embeddings", "embedding", "embed", "word_embeddings", "wte", "pos_embed"])
_LINEAR_ATTENTION = frozenset(["linear_attn", "mamba", "conv1d", "in_proj", "out_proj", "A_log", "dt_bias"])
_ATTENTION = frozenset(["self_attn", "attn", "attention", "self_attention", "indexer", "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"])
_MLP = frozenset(["mlp", "feed_forward", "ffn", "block_sparse_moe", "up_proj", "down_proj", "gate_proj", "gate_up_proj"])


def layer_of(name: str) -> int | None:
    """The number after the first ``layers.``, or None. ``mtp.layers.0`` gives 0: a layer of the MTP head, not of the model."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def prefix_family(names: Iterable[str]) -> str:
    """How layer names begin, up to and with ``layers.``, in the first name of the language model that has a layer; else ""."""
    for name in names:
        found = _LAYER.search(name)
        if found:
            prefix = name[: found.start(1)]
            if not (_VISION | _MTP) & set(prefix.split(".")):
                return prefix
    return ""


def split_expert(name: str) -> tuple[str, int, str] | None:
    """``….experts.17.gate_proj`` -> (``….experts``, 17, ``gate_proj``); None for a name that does not number an expert."""
    found = _EXPERT.match(name)
    return (found.group(1), int(found.group(2)), found.group(3) or "") if found else None


@lru_cache(maxsize=65536)
def module_kind(name: str, layers: int | None = None) -> str:
    """One of KINDS. layers: number of decoder layers; a layer at or above it is a next-token-prediction (MTP) layer."""
    parts = set(name.split("."))
    if parts & _VISION:
        return "vision"
    layer = layer_of(name)
    if parts & _MTP or (layers is not None and layer is not None and layer >= layers):
        return "mtp"
    if parts & _ROUTER:
        return "router"
    if parts & _SHARED:
        return "shared experts"
    if "experts" in parts:
        return "routed experts"
    if any(part.endswith(("norm", "norm_f", "layernorm")) for part in parts):
        return "norm"
    if layer is None and parts & _HEAD:
        return "lm_head"
    if parts & _EMBEDDING:
        return "embedding"
    if parts & _LINEAR_ATTENTION:
        return "linear attention"
    if parts & _ATTENTION:
        return "attention"
    if parts & _MLP:
        return "dense mlp"
    return "other"


def printable(text: str) -> str:
    """A name for a one-line message: what a terminal cannot show, such as the NUL in ModelOpt's corrupted names, is written out."""
    return text if text.isprintable() else repr(text)[1:-1]


def some(names: Iterable[str], shown: int = 4) -> str:
    """The first few names for a message, and how many more."""
    names = list(names)
    more = len(names) - shown
    return ", ".join(map(printable, names[:shown])) + (f" and {more:,} more" if more > 0 else "")
