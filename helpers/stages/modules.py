"""The modules of the running model that SGLang asks a quantisation method for, by architecture and release.

SGLang names a module by where its own model class builds it, not by the checkpoint's tensors: q_proj, k_proj and v_proj are
one ``qkv_proj``, all experts of a block are one ``experts``, Kimi's ``language_model.model.`` is left out, MiniMax-M3's
``block_sparse_moe`` is ``mlp``, Nemotron's ``backbone`` is ``model``. This table says, per architecture, what is asked under
which name and which parts of the checkpoint go into it.

Every entry was read from the model class it names and compared with what the real class asks for when it is built (16
releases, without a GPU: see tests/sglang). An architecture that is not here is *assumed* to use the checkpoint's own names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from helpers.checkpoint import Checkpoint
from helpers.deployment import Release
from helpers.stages.names import Mapper


@dataclass(frozen=True)
class Part:
    """One module of a layer: its name inside the layer, its kind, and the checkpoint's names of what goes into it.

    kind: "experts", "linear", "attention", "lm_head" or "embedding". unless: why the model class may not ask for it
    ("fused" shared experts, "unquantised" by the model class itself, "bf16 indexer"), "" when it always does.
    """

    name: str
    kind: str
    sources: tuple[str, ...]
    unless: str = ""


@dataclass(frozen=True)
class Module:
    """A module of the running model. prefix: SGLang's name. sources: what the checkpoint calls its parts, without ``.weight``."""

    prefix: str
    kind: str
    layer: int | None
    sources: tuple[str, ...]
    unless: str = ""


def linear(name: str, *sources: str, unless: str = "") -> Part:
    """A linear module; sources default to its own name, and are siblings of it otherwise."""
    base = name.rpartition(".")[0]
    return Part(name, "linear", tuple(f"{base}.{source}" for source in sources) if sources else (name,), unless)


QKV = linear("self_attn.qkv_proj", "q_proj", "k_proj", "v_proj")
O_PROJ = linear("self_attn.o_proj")
ATTENTION = Part("self_attn.attn", "attention", ("self_attn",))
DENSE = (linear("mlp.gate_up_proj", "gate_proj", "up_proj"), linear("mlp.down_proj"))
QKV_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
GATE_UP_PACKED = {"gate_up_proj": ("gate_proj", "up_proj")}


def experts(name: str = "mlp.experts", source: str = "") -> Part:
    return Part(name, "experts", (source or name,))


def shared(name: str, source: str = "", unless: str = "") -> tuple[Part, Part]:
    """A gated shared expert: gate and up fused, down apart. source: the checkpoint's name of it."""
    source = source or name
    return (
        Part(f"{name}.gate_up_proj", "linear", (f"{source}.gate_proj", f"{source}.up_proj"), unless),
        Part(f"{name}.down_proj", "linear", (f"{source}.down_proj",), unless),
    )


@dataclass(frozen=True)
class Family:
    """The model classes that name their modules alike.

    architectures: name -> first release that has the class. file: where the class is. layers: SGLang's prefix of the layers.
    checkpoint_layers: the prefixes published checkpoints use for the same layers. parts: (text config, layer, release,
    quantisation name) -> parts of that layer. top: modules outside the layers. packed, mapper, remap: what the class hands to
    the quantisation config (model_loader/loader.py: _get_quantization_config). unprefixed: quantisations whose class starts at ``layers.``.
    activation: the one hidden_act that the class does not refuse, "" where it does not look.
    """

    architectures: Mapping[str, str]
    file: str
    layers: str
    checkpoint_layers: tuple[str, ...]
    parts: Callable[[dict, int, Release, str], tuple[Part, ...]]
    top: Callable[[dict], tuple[Module, ...]] = lambda config: ()
    packed: Callable[[dict, Release], Mapping] = lambda text, release: {}
    mapper: Callable[[Release], Mapper | None] = lambda release: None
    remap: bool = False
    unprefixed: tuple[str, ...] = ()
    activation: str = ""


def lm_head(prefix: str = "lm_head") -> Module:
    return Module(prefix, "lm_head", None, (prefix, "lm_head") if prefix != "lm_head" else ("lm_head",))


def untied(text: dict) -> bool:
    return not text.get("tie_word_embeddings", False)


def head_unless_tied(config: dict) -> tuple[Module, ...]:
    return (lm_head(),) if untied(config) else ()


def embedding(prefix: str) -> Module:
    return Module(prefix, "embedding", None, (prefix,))


# --- Qwen3 MoE, dense Qwen3, Llama -----------------------------------------------------------------------------------


def _experts(text: dict) -> int:
    return text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0


def _qwen3_moe(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/qwen3_moe.py: every layer of an MoE model has experts; mlp_only_layers and decoder_sparse_step are not read."""
    return (QKV, O_PROJ, *((experts(),) if _experts(text) else DENSE))


def _dense_decoder(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    return (QKV, O_PROJ, *DENSE)


def _llama(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    return (QKV, O_PROJ, ATTENTION, *DENSE)


QWEN3_MOE = Family(
    architectures={"Qwen3MoeForCausalLM": "0.5.11"},
    file="models/qwen3_moe.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_qwen3_moe,
    top=lambda config: (embedding("model.embed_tokens"), lm_head()),
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)

QWEN3_VL = Family(
    architectures={"Qwen3VLMoeForConditionalGeneration": "0.5.11", "Qwen3VLForConditionalGeneration": "0.5.11"},
    file="models/qwen3_vl.py",
    layers="model.language_model.layers.",
    checkpoint_layers=("model.language_model.layers.", "model.layers."),
    parts=_qwen3_moe,
    top=lambda config: (embedding("model.language_model.embed_tokens"), lm_head()),
    mapper=lambda release: Mapper(
        substr={"attn.qkv": "attn.qkv_proj"},
        prefix={
            "model.language_model.": "language_model.model.",
            "model.visual.": "visual.",
            "lm_head.": "language_model.lm_head.",
            "model.": "language_model.model.",
        },
    ),
)

QWEN3 = Family(
    architectures={"Qwen3ForCausalLM": "0.5.11"},
    file="models/qwen3.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_dense_decoder,
    top=lambda config: (embedding("model.embed_tokens"), *head_unless_tied(config)),
)

LLAMA = Family(
    architectures={"LlamaForCausalLM": "0.5.11"},
    file="models/llama.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_llama,
    top=lambda config: (embedding("model.embed_tokens"), *head_unless_tied(config)),
)

# --- Qwen3.5: three linear-attention layers, then one with full attention ---------------------------------------------


def _qwen3_5(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """Up to 0.5.16 the class keeps attention of a flat NVFP4 checkpoint in BF16 whatever the checkpoint says."""
    unless = "unquantised" if quantization == "modelopt_fp4" and not release.at_least("0.5.17") else ""
    if _has_full_attention(text, layer):
        attention = (
            linear("self_attn.qkv_proj", "q_proj", "k_proj", "v_proj", unless=unless),
            linear("self_attn.o_proj", unless=unless),
            *((ATTENTION,) if release.at_least("0.5.17") else ()),
        )
    else:
        attention = (
            linear("linear_attn.in_proj_qkvz", "in_proj_qkv", "in_proj_z", unless=unless),
            linear("linear_attn.in_proj_ba", "in_proj_b", "in_proj_a", unless=unless),
            linear("linear_attn.out_proj", unless=unless),
        )
    if text.get("model_type", "").endswith("moe_text") or _experts(text):
        return (*attention, experts(), *shared("mlp.shared_expert", unless="fused"))
    return (*attention, *DENSE)


def _has_full_attention(text: dict, layer: int) -> bool:
    """configs/qwen3_next.py: layers_block_type counts by full_attention_interval; layer_types is transformers' newer form."""
    interval = text.get("full_attention_interval")
    if interval:
        return (layer + 1) % interval == 0
    kinds = text.get("layer_types") or ()
    return layer < len(kinds) and kinds[layer] in ("full_attention", "qwen_sparse_attention", "indexed_attention")


def _qwen3_next(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/qwen3_next.py: qkv stays BF16 for a flat NVFP4 checkpoint, and its shared expert is never asked for."""
    if _has_full_attention(text, layer):
        unless = "unquantised" if quantization == "modelopt_fp4" else ""
        attention = (linear("self_attn.qkv_proj", "q_proj", "k_proj", "v_proj", unless=unless), O_PROJ, ATTENTION)
    else:
        attention = (linear("linear_attn.in_proj_qkvz"), linear("linear_attn.in_proj_ba"), linear("linear_attn.out_proj"))
    return (*attention, experts(), *shared("mlp.shared_expert", unless="fused"))


QWEN3_NEXT = Family(
    architectures={"Qwen3NextForCausalLM": "0.5.11"},
    file="models/qwen3_next.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_qwen3_next,
    top=lambda config: (lm_head(),),
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)

QWEN3_5 = Family(
    architectures={
        "Qwen3_5MoeForConditionalGeneration": "0.5.11",
        "Qwen3_5ForConditionalGeneration": "0.5.11",
        "Qwen4ExpForConditionalGeneration": "0.5.20",
    },
    file="models/qwen3_5.py and qwen4_exp.py",
    layers="model.language_model.layers.",
    checkpoint_layers=("model.language_model.layers.",),
    parts=_qwen3_5,
    top=lambda config: (lm_head(),),
    packed=lambda text, release: (
        QKV_PACKED | GATE_UP_PACKED | {"in_proj_qkvz": ("in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_b", "in_proj_a")}
    ),
)

# --- DeepSeek V3 and the models built on its class --------------------------------------------------------------------


def _mla(text: dict, indexer: tuple[Part, ...] = ()) -> tuple[Part, ...]:
    """Latent attention. With a low-rank query, its first projection is fused with that of keys and values."""
    if text.get("q_lora_rank"):
        queries = (
            linear("self_attn.fused_qkv_a_proj_with_mqa", "q_a_proj", "kv_a_proj_with_mqa"),
            linear("self_attn.q_b_proj"),
        )
    else:
        queries = (linear("self_attn.q_proj"), linear("self_attn.kv_a_proj_with_mqa"))
    return (
        *queries,
        *indexer,
        linear("self_attn.kv_b_proj"),
        O_PROJ,
        Part("self_attn.attn_mqa", "attention", ("self_attn",)),
        Part("self_attn.attn_mha", "attention", ("self_attn",)),
    )


def _deepseek(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    indexer = ()
    if text.get("index_topk") and not (release.at_least("0.5.18") and _reuses_indexer(text, layer, release)):
        indexer = (linear("self_attn.indexer.wq_b"), linear("self_attn.indexer.wk", unless="bf16 indexer"))
    attention = _mla(text, indexer)
    if not _deepseek_is_sparse(text, layer):
        return (*attention, *DENSE)
    return (*attention, experts(), *(shared("mlp.shared_experts", unless="fused") if text.get("n_shared_experts") else ()))


def _reuses_indexer(text: dict, layer: int, release: Release) -> bool:
    """configs/model_config.py: dsa_layer_skips_topk. Such a layer has no indexer of its own from 0.5.18."""
    kinds = text.get("indexer_types")
    if kinds is not None and release.at_least("0.5.20"):
        return layer < len(kinds) and kinds[layer] == "shared"
    pattern = text.get("index_topk_pattern")
    if pattern is not None:
        return layer < len(pattern) and pattern[layer] == "S"
    frequency = text.get("index_topk_freq") or 1
    offset = text.get("index_skip_topk_offset")
    return max(layer - (1 if offset is None else offset - 1), 0) % frequency != 0


def _deepseek_is_sparse(text: dict, layer: int) -> bool:
    """models/deepseek_v2.py: DeepseekV2DecoderLayer._is_layer_sparse."""
    return _experts(text) > 0 and layer >= text.get("first_k_dense_replace", 0) and layer % text.get("moe_layer_freq", 1) == 0


def _deepseek_packed(text: dict, release: Release) -> Mapping:
    return {"fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa")} if text.get("q_lora_rank") else {}


DEEPSEEK = Family(
    architectures={
        "DeepseekV2ForCausalLM": "0.5.11",
        "DeepseekV3ForCausalLM": "0.5.11",
        "DeepseekV32ForCausalLM": "0.5.11",
        "GlmMoeDsaForCausalLM": "0.5.11",
    },
    file="models/deepseek_v2.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_deepseek,
    top=lambda config: (lm_head(),),
    packed=_deepseek_packed,
    activation="silu",
)

KIMI_K25 = Family(
    architectures={"KimiK25ForConditionalGeneration": "0.5.11"},
    file="models/kimi_k25.py",
    activation="silu",
    layers="model.layers.",
    checkpoint_layers=("language_model.model.layers.",),
    parts=_deepseek,
    top=lambda config: (Module("lm_head", "lm_head", None, ("language_model.lm_head",)),),
    mapper=lambda release: Mapper(prefix={"language_model.layers.": "language_model.model.layers."}),
)


def _glm4_moe(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    if not _deepseek_is_sparse(text, layer):
        return (QKV, O_PROJ, *DENSE)
    return (QKV, O_PROJ, experts(), *(shared("mlp.shared_experts", unless="fused") if text.get("n_shared_experts") else ()))


GLM4_MOE = Family(
    architectures={"Glm4MoeForCausalLM": "0.5.11"},
    file="models/glm4_moe.py",
    activation="silu",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_glm4_moe,
    top=lambda config: (lm_head(),),
    mapper=lambda release: Mapper() if release.at_least("0.5.16") else None,
)


def _kimi_k3(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/kimi_k3.py: KDA layers (their numbers count from one), else latent attention with an output gate."""
    kda = (text.get("linear_attn_config") or {}).get("kda_layers") or ()
    if layer + 1 in kda:
        attention = (
            linear("self_attn.fused_qkvg_proj", "q_proj", "k_proj", "v_proj", "g_proj"),
            linear("self_attn.b_proj"),
            linear("self_attn.f_a_proj"),
            linear("self_attn.f_b_proj"),
            O_PROJ,
        )
    else:
        attention = (*_mla(text), *((linear("self_attn.g_proj"),) if text.get("mla_use_output_gate") else ()))
    if not _deepseek_is_sparse(text, layer):
        return (*attention, *DENSE)
    moe = experts(source="block_sparse_moe.experts")
    return (*attention, moe, *shared("mlp.shared_experts", "block_sparse_moe.shared_experts", unless="fused"))


def _kimi_k3_packed(text: dict, release: Release) -> Mapping:
    if not release.at_least("0.5.19"):
        return {}
    return (
        GATE_UP_PACKED
        | QKV_PACKED
        | {
            "qkv_conv1d": ("q_conv1d", "k_conv1d", "v_conv1d"),
            "fused_qkvg_proj": ("q_proj", "k_proj", "v_proj", "g_proj"),
            "fused_qkvbfg_a_proj": ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"),
            "fused_fg_b_proj": ("f_b_proj", "g_b_proj"),
        }
    )


KIMI_K3 = Family(
    architectures={"KimiK3ForConditionalGeneration": "0.5.17"},
    file="models/kimi_k3.py",
    layers="model.layers.",
    checkpoint_layers=("language_model.model.layers.",),
    parts=_kimi_k3,
    top=lambda config: (Module("lm_head", "lm_head", None, ("language_model.lm_head",)),),
    packed=_kimi_k3_packed,
    mapper=lambda release: Mapper(substr={"block_sparse_moe": "mlp"}, prefix={"language_model.layers.": "language_model.model.layers."}),
)


def _deepseek_v4(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/deepseek_v4.py. Layers with a compress ratio of 4 have an indexer of their own."""
    ratios = text.get("compress_ratios") or ()
    # From 0.5.21 the class keeps wo_a in BF16 unless the checkpoint is natively FP8; before, it insists on block scales.
    unless = "unquantised" if release.at_least("0.5.21") and quantization != "fp8" else ""
    indexer = (linear("self_attn.indexer.wq_b"),) if layer < len(ratios) and ratios[layer] == 4 else ()
    return (
        Part("self_attn.wqkv_a", "linear", ("attn.wq_a", "attn.wkv")),
        Part("self_attn.wq_b", "linear", ("attn.wq_b",)),
        Part("self_attn.wo_a", "linear", ("attn.wo_a",), unless),
        Part("self_attn.wo_b", "linear", ("attn.wo_b",)),
        Part("self_attn.attn_mqa", "attention", ("attn",)),
        *indexer,
        experts(source="ffn.experts"),
        Part("mlp.shared_experts.gate_up_proj", "linear", ("ffn.shared_experts.w1", "ffn.shared_experts.w3"), "fused"),
        Part("mlp.shared_experts.down_proj", "linear", ("ffn.shared_experts.w2",), "fused"),
    )


DEEPSEEK_V4 = Family(
    architectures={"DeepseekV4ForCausalLM": "0.5.12"},
    file="models/deepseek_v4.py",
    layers="model.layers.",
    checkpoint_layers=("layers.",),
    parts=_deepseek_v4,
    top=lambda config: (Module("lm_head", "lm_head", None, ("head",)),),
)

# --- MiniMax ----------------------------------------------------------------------------------------------------------


def _minimax_m2(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    return (QKV, O_PROJ, ATTENTION, experts("block_sparse_moe.experts"))


MINIMAX_M2 = Family(
    architectures={"MiniMaxM2ForCausalLM": "0.5.11"},
    file="models/minimax_m2.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_minimax_m2,
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)


def _minimax_m3_packed(text: dict, release: Release) -> Mapping:
    """The class has neither packed parts nor a mapper before 0.5.17 (sglang#31827)."""
    if not release.at_least("0.5.17"):
        return {}
    index = ("index_q_proj", "index_k_proj") if release.at_least("0.5.20") else ("index_q_proj", "index_k_proj", "index_v_proj")
    return QKV_PACKED | {"index_qkv_proj": index} | GATE_UP_PACKED


def _minimax_m3(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/minimax_m3.py: MiniMaxM3DecoderLayer; sparse-attention layers have an indexer."""
    attention = (QKV, O_PROJ, ATTENTION)
    sparse_attention = (text.get("sparse_attention_config") or {}).get("sparse_attention_freq") or ()
    if layer < len(sparse_attention) and sparse_attention[layer]:
        attention += (linear("self_attn.index_qkv_proj", "index_q_proj", "index_k_proj"),)
    frequency = text.get("moe_layer_freq")
    if frequency is not None and layer < len(frequency) and not frequency[layer]:
        return (*attention, *DENSE)
    moe = experts(source="block_sparse_moe.experts")
    if not text.get("n_shared_experts"):
        return (*attention, moe)
    return (*attention, moe, *shared("mlp.shared_experts", "block_sparse_moe.shared_experts", unless="fused"))


MINIMAX_M3 = Family(
    architectures={"MiniMaxM3SparseForConditionalGeneration": "0.5.16"},
    file="models/minimax_m3_vl.py",
    layers="language_model.model.layers.",
    checkpoint_layers=("language_model.model.layers.",),
    parts=_minimax_m3,
    top=lambda config: (lm_head("language_model.lm_head"),),
    packed=_minimax_m3_packed,
    mapper=lambda release: Mapper(substr={".block_sparse_moe.": ".mlp."}) if release.at_least("0.5.17") else None,
)

# --- Nemotron-H: one mixer a layer, experts without a gate -----------------------------------------------------------


def _nemotron_h(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    kind = _nemotron_kinds(text)[layer]
    if kind == "mamba":
        return (linear("mixer.in_proj"), linear("mixer.out_proj"))
    if kind == "attention":
        attention = Part("mixer.attn", "attention", ("mixer",))
        return (linear("mixer.qkv_proj", "q_proj", "k_proj", "v_proj"), linear("mixer.o_proj"), attention)
    if kind == "mlp":
        return (linear("mixer.up_proj"), linear("mixer.down_proj"))
    shared_expert = (linear("mixer.shared_experts.up_proj"), linear("mixer.shared_experts.down_proj"))
    latent = (linear("mixer.fc1_latent_proj"), linear("mixer.fc2_latent_proj")) if text.get("moe_latent_size") is not None else ()
    return (experts("mixer.experts"), *(shared_expert if text.get("n_shared_experts") else ()), *latent)


_NEMOTRON_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


def _nemotron_kinds(text: dict) -> list[str]:
    """configs/nemotron_h.py: layers_block_type, or the older hybrid_override_pattern."""
    kinds = text.get("layers_block_type")
    return kinds if kinds is not None else [_NEMOTRON_LETTERS[letter] for letter in text.get("hybrid_override_pattern", "")]


NEMOTRON_H = Family(
    architectures={"NemotronHForCausalLM": "0.5.11"},
    file="models/nemotron_h.py",
    layers="model.layers.",
    checkpoint_layers=("backbone.layers.", "model.layers."),
    parts=_nemotron_h,
    top=lambda config: (lm_head(),),
    packed=lambda text, release: QKV_PACKED,
    mapper=lambda release: Mapper(prefix={"backbone.": "model."}),
    remap=True,
)

# --- Gemma 4, Llama 4, gpt-oss, Mixtral -------------------------------------------------------------------------------


def _gemma4(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/gemma4_causal.py: the experts stand beside the dense MLP, and their runtime name has a ``moe.`` of its own."""
    moe = (Part("moe.experts", "experts", ("experts",)),) if text.get("enable_moe_block") else ()
    inputs = (linear("per_layer_input_gate"), linear("per_layer_projection")) if text.get("hidden_size_per_layer_input") else ()
    return (QKV, O_PROJ, ATTENTION, *DENSE, *inputs, *moe)


def _gemma4_top(config: dict) -> tuple[Module, ...]:
    vision = (config.get("vision_config") or {}).get("num_hidden_layers", 0)
    tower = "model.vision_tower.encoder.layers."
    modules = []
    for layer in range(vision):
        for name, sources in (
            ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("self_attn.o_proj.linear", ()),
            ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
            ("mlp.down_proj.linear", ()),
        ):
            base = name.partition(".")[0]
            named = tuple(f"{tower}{layer}.{base}.{source}" for source in sources) or (f"{tower}{layer}.{name}",)
            modules.append(Module(f"{tower}{layer}.{name}", "linear", None, named))
    if vision:
        modules.append(Module("model.embed_vision.embedding_projection", "linear", None, ("model.embed_vision.embedding_projection",)))
    return tuple(modules)


GEMMA4_TEXT = Family(
    architectures={"Gemma4ForCausalLM": "0.5.11"},
    file="models/gemma4_causal.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_gemma4,
    top=lambda config: (
        ((lm_head(),) if not config.get("tie_word_embeddings", True) else ())
        + (
            (Module("model.per_layer_model_projection", "linear", None, ("model.per_layer_model_projection",)),)
            if config.get("hidden_size_per_layer_input")
            else ()
        )
    ),
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)

GEMMA4 = Family(
    architectures={"Gemma4ForConditionalGeneration": "0.5.11"},
    file="models/gemma4_mm.py",
    layers="model.language_model.layers.",
    checkpoint_layers=("model.language_model.layers.",),
    parts=_gemma4,
    top=_gemma4_top,
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)


def _llama4(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/llama4.py: Llama4DecoderLayer._is_moe_layer."""
    attention = (QKV, O_PROJ)
    step = text.get("interleave_moe_layer_step", 1)
    if step and (layer + 1) % step == 0:
        return (*attention, experts("feed_forward.experts"), *shared("feed_forward.shared_expert"))
    return (*attention, *shared("feed_forward"))


LLAMA4 = Family(
    architectures={"Llama4ForCausalLM": "0.5.11"},
    file="models/llama4.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_llama4,
    top=lambda config: (embedding("model.embed_tokens"), lm_head()),
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)

LLAMA4_VL = Family(
    architectures={"Llama4ForConditionalGeneration": "0.5.11"},
    file="models/mllama4.py",
    layers="language_model.model.layers.",
    checkpoint_layers=("language_model.model.layers.",),
    parts=_llama4,
    top=lambda config: (embedding("language_model.model.embed_tokens"), lm_head("language_model.lm_head")),
    packed=lambda text, release: QKV_PACKED | GATE_UP_PACKED,
)

GPT_OSS = Family(
    architectures={"GptOssForCausalLM": "0.5.11"},
    file="models/gpt_oss.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=lambda text, layer, release, quantization: (experts(),),
)


def _quant_mixtral(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    """models/mixtral_quant.py: one linear module an expert and projection; there is no fused block."""
    names = (f"block_sparse_moe.experts.{expert}.{part}" for expert in range(_experts(text)) for part in ("w1", "w2", "w3"))
    return (QKV, O_PROJ, ATTENTION, *(linear(name) for name in names))


# What models/mixtral.py serves; ModelOpt's quantisations go to QuantMixtralForCausalLM (model_loader/utils.py).
_PLAIN_MIXTRAL = ("fp8", "compressed-tensors", "gptq_marlin", "awq_marlin", "quark_int4fp8_moe", "")


def _mixtral(text: dict, layer: int, release: Release, quantization: str) -> tuple[Part, ...]:
    if quantization in _PLAIN_MIXTRAL:
        return (QKV, O_PROJ, ATTENTION, experts("block_sparse_moe.experts"))
    return _quant_mixtral(text, layer, release, quantization)


MIXTRAL = Family(
    architectures={"MixtralForCausalLM": "0.5.11"},
    file="models/mixtral_quant.py",
    layers="model.layers.",
    checkpoint_layers=("model.layers.",),
    parts=_mixtral,
    unprefixed=_PLAIN_MIXTRAL,
)

FAMILIES = (
    QWEN3_MOE,
    QWEN3_VL,
    QWEN3,
    LLAMA,
    QWEN3_NEXT,
    QWEN3_5,
    DEEPSEEK,
    KIMI_K25,
    GLM4_MOE,
    KIMI_K3,
    DEEPSEEK_V4,
    MINIMAX_M2,
    MINIMAX_M3,
    NEMOTRON_H,
    GEMMA4_TEXT,
    GEMMA4,
    LLAMA4,
    LLAMA4_VL,
    GPT_OSS,
    MIXTRAL,
)
_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_of(checkpoint: Checkpoint) -> Family | None:
    """The table's entry for the checkpoint's architecture, or None: its names are then assumed."""
    return _BY_ARCHITECTURE.get(checkpoint.architecture)


def has_class(family: Family, checkpoint: Checkpoint, release: Release) -> bool:
    """Does the release have the model class? Before it, SGLang falls back to its generic Transformers classes."""
    return release.at_least(family.architectures[checkpoint.architecture])


def layer_count(text: dict) -> int:
    """Decoder layers, by the keys published configs use."""
    return text.get("num_hidden_layers") or len(text.get("layers_block_type") or text.get("hybrid_override_pattern") or ())


def modules_of(family: Family, checkpoint: Checkpoint, release: Release, quantization: str) -> Iterator[Module]:
    """Every module the model class asks a quantisation method for, in the order in which it is built."""
    text, top = checkpoint.text_config, family.top(checkpoint.config)
    yield from (module for module in top if module.kind == "embedding")
    layers = family.layers.removeprefix("model.") if quantization in family.unprefixed else family.layers
    for layer in range(layer_count(text)):
        for part in family.parts(text, layer, release, quantization):
            sources = tuple(f"{stem}{layer}.{source}" for stem in family.checkpoint_layers for source in part.sources)
            yield Module(f"{layers}{layer}.{part.name}", part.kind, layer, sources, part.unless)
    yield from (module for module in top if module.kind != "embedding")
