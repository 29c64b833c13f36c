"""The shape of a model's mixture-of-experts blocks, read from its configuration in every spelling that real checkpoints use."""

from dataclasses import dataclass

from helpers.checkpoint.config_copies import text_config
from helpers.errors import InputError, UsageError

# First key present wins; real configs: DeepSeek/GLM/Nemotron, Qwen/Gemma/Kimi-K3, Mixtral/MiniMax/Llama-4/gpt-oss.
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
INTERMEDIATE = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", "moe_top_k")
SHARED = ("n_shared_experts", "num_shared_experts")
SHARED_INTERMEDIATE = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
EXPERT_HIDDEN = ("moe_latent_size", "routed_expert_hidden_size")
ACTIVATION = ("mlp_hidden_act", "hidden_act", "hidden_activation")
LAYERS = ("num_hidden_layers", "n_layers", "n_layer")
MOST_LAYERS = 10_000  # a bound, because a list is made of them
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")

# Where a family keeps its block of experts inside a layer; the rest say "mlp.experts".
EXPERT_BLOCK = {
    "minimax": "block_sparse_moe.experts",
    "mixtral": "block_sparse_moe.experts",
    "nemotron_h": "mixer.experts",
    "deepseek_v4": "ffn.experts",
    "llama4": "feed_forward.experts",
    "gemma4": "experts",
}


@dataclass(frozen=True)
class ExpertGeometry:
    """Dimensions in elements, before any sharding.

    moe_layers: indices of the decoder layers that have routed experts. expert_hidden: width that the experts see (the latent width
    where a model has one, else hidden). intermediate: width inside one routed expert. gated: gate and up projections (w1 and w3);
    otherwise up only. shared_intermediate: width of all shared experts together. block: where a layer keeps its experts.
    """

    layers: int
    moe_layers: tuple[int, ...]
    hidden: int
    expert_hidden: int
    intermediate: int
    experts: int
    top_k: int
    shared_experts: int
    shared_intermediate: int
    gated: bool
    activation: str
    block: str
    mtp_layers: int = 0

    def local_experts(self, ep: int) -> int:
        """Experts on one rank. UsageError when ep does not divide them."""
        _positive(ep=ep)
        if self.experts % ep:
            raise UsageError(f"ep={ep} does not divide the {self.experts} experts; choose ep from {_divisors(self.experts)}")
        return self.experts // ep

    def local_intermediate(self, tp: int, ep: int) -> int:
        """Width of one expert on one rank: intermediate / (tp / ep). UsageError when one does not divide the other."""
        _positive(tp=tp, ep=ep)
        if tp % ep:
            raise UsageError(f"ep={ep} does not divide tp={tp}; choose ep from {_divisors(tp)}")
        moe_tp = tp // ep
        if self.intermediate % moe_tp:
            raise UsageError(
                f"tp={tp} / ep={ep} cuts the experts' intermediate size {self.intermediate} into {moe_tp} parts, which does not divide; "
                f"choose tp / ep from {_divisors(self.intermediate)}"
            )
        return self.intermediate // moe_tp


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name}={size}: must be at least 1")


def _divisors(number: int, most: int = 64) -> str:
    return ", ".join(str(n) for n in range(1, min(number, most) + 1) if number % n == 0)


def read_geometry(config: dict) -> ExpertGeometry | None:
    """None for a model without routed experts. InputError for a dimension that is not a whole number, or is missing."""
    text = text_config(config)
    experts = _size(text, EXPERTS)
    if not experts or text.get("enable_moe_block") is False:
        return None
    layers, moe_layers = _moe_layers(text)
    intermediate = _needed(text, INTERMEDIATE)
    hidden = _needed(text, ("hidden_size",))
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    shared, shared_intermediate = _shared(text, model_type, intermediate)
    activation = next((text[key] for key in ACTIVATION if isinstance(text.get(key), str)), "silu")
    return ExpertGeometry(
        layers=layers,
        moe_layers=moe_layers,
        hidden=hidden,
        expert_hidden=_size(text, EXPERT_HIDDEN) or hidden,
        intermediate=intermediate,
        experts=experts,
        top_k=_needed(text, TOP_K),
        shared_experts=shared,
        shared_intermediate=shared_intermediate,
        gated=not activation.startswith("relu"),
        activation=activation,
        block=next((block for family, block in EXPERT_BLOCK.items() if model_type.startswith(family)), "mlp.experts"),
        mtp_layers=_size(text, MTP_LAYERS),
    )


def _whole(text: dict, key: str) -> int:
    value = text[key]
    if type(value) is not int or value < 0:
        raise InputError(f"config.json: {key} is {value!r}, not a whole number; restore the model's own config.json")
    return value


def _size(text: dict, keys: tuple[str, ...]) -> int:
    """The first of the keys that is given, 0 when none is: a missing size and a size of nothing mean the same here."""
    return next((_whole(text, key) for key in keys if text.get(key) is not None), 0)


def _needed(text: dict, keys: tuple[str, ...]) -> int:
    size = _size(text, keys)
    if not size:
        raise InputError(f"config.json: has experts but no {' or '.join(keys)}; restore the model's own config.json")
    return size


def _shared(text: dict, model_type: str, intermediate: int) -> tuple[int, int]:
    """(number of shared experts, their width together)."""
    if model_type.startswith("llama4"):
        return 1, intermediate
    width = _size(text, SHARED_INTERMEDIATE)
    number = _size(text, SHARED) or (1 if width else 0)
    return number, width or number * intermediate


def _moe_layers(text: dict) -> tuple[int, tuple[int, ...]]:
    """(number of decoder layers, indices of those with routed experts), by whichever rule the model's family writes down."""
    pattern = _listed(text, "hybrid_override_pattern", (str, list)) or _listed(text, "layers_block_type", (str, list))
    if pattern:
        return len(pattern), tuple(i for i, mark in enumerate(pattern) if mark in ("E", "moe"))
    layers = _needed(text, LAYERS)
    if layers > MOST_LAYERS:
        raise InputError(f"config.json: num_hidden_layers is {layers}, more than any model has; restore the model's own config.json")
    kinds = _listed(text, "mlp_layer_types")
    if kinds:
        return layers, tuple(i for i, kind in enumerate(kinds[:layers]) if kind == "sparse")
    if isinstance(text.get("moe_layer_freq"), list):
        return layers, tuple(i for i, flag in enumerate(text["moe_layer_freq"][:layers]) if flag)
    named = _listed(text, "moe_layers")
    if named:
        if not all(type(layer) is int for layer in named):
            raise InputError(f"config.json: moe_layers is {named!r}, not a list of layer numbers; restore the model's own config.json")
        return layers, tuple(named)
    first = _size(text, ("first_k_dense_replace",))
    dense = _listed(text, "mlp_only_layers") or ()
    step = _size(text, ("decoder_sparse_step", "interleave_moe_layer_step")) or 1
    every = _size(text, ("moe_layer_freq",)) or 1
    return layers, tuple(i for i in range(first, layers) if (i + 1) % step == 0 and i % every == 0 and i not in dense)


def _listed(text: dict, key: str, kinds: tuple[type, ...] = (list,)) -> list | str | None:
    value = text.get(key)
    if value is not None and not isinstance(value, kinds):
        raise InputError(f"config.json: {key} is {value!r}, not a list; restore the model's own config.json")
    return value
