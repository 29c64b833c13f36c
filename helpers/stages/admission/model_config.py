"""ModelConfig: can this release read config.json at all, and does ``--quantization`` agree with the checkpoint?"""

from collections.abc import Mapping

from helpers.deployment import releases_with
from helpers.stages.admission.resolution import Resolution
from helpers.stages.detect import verify_flag

# What transformers accepts in layer_types: (pin, its tuple, in its own order, because the order is part of an error text).
# configuration_utils.py: ALLOWED_LAYER_TYPES, from 5.19.0 ALLOWED_ATTN_LAYER_TYPES.
_PLAIN = ("linear_attention", "conv", "mamba", "attention", "sparse", "dense", "hybrid", "moe")
_COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
LAYER_TYPES = {
    "5.6.0": (*_ATTENTION, *_PLAIN),
    "5.8.1": (*_ATTENTION, *_COMPRESSED, *_PLAIN),
    "5.12.1": (*_ATTENTION, *_COMPRESSED, "minimax_m3_sparse", *_PLAIN, "deepseek_sparse_attention"),
    "5.19.0": (
        *_ATTENTION,
        "window_attention",
        "indexed_attention",
        *_COMPRESSED,
        "minimax_m3_sparse",
        "conv",
        "moe",
        "hybrid",
        "hybrid_sliding",
        "linear_attention",
    ),
}
# Old names that 5.19.0 translates before it checks. configuration_utils.py: remap_legacy_layer_types.
_OLD_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def model_config_rules(r: Resolution) -> None:
    """In SGLang's order: transformers reads config.json, then the flag and the checkpoint are reconciled."""
    _model_type(r)
    _layer_types(r)
    verified = verify_flag(r.facts.detection, r.quantization, r.release)
    question, read = "does the flag agree with the checkpoint?", "--quantization, quant_method"
    if verified.error:
        r.refuse("model_config", verified.error, verified.message, question, read, r.quantization, verified.place)
    r.model_quantization = verified.quantization
    # The arguments keep the flag, whatever ModelConfig made of it: that is what the allowlists read.
    r.note("model_config", question, read, r.quantization, f"the layers will be {verified.quantization}")


def _model_type(r: Resolution) -> None:
    config = r.facts.checkpoint.config
    model_type = config.get("model_type")
    question, read = "does this release know the model type?", "config.json: model_type"
    # 0.5.11 reads DeepSeek V3.2 although transformers does not know it: it rewrites the file to deepseek_v3 for itself.
    if r.release in releases_with(model_type) or model_type == "deepseek_v32":
        return r.note("config", question, read, model_type, "yes")
    folder = r.facts.checkpoint.path or r.facts.checkpoint.name
    if isinstance(config.get("auto_map"), Mapping) and "AutoConfig" in config["auto_map"]:
        message = (
            f"The repository {folder} contains custom code which must be executed to correctly load the model. You can inspect the "
            f"repository content at {folder} .\n You can inspect the repository content at https://hf.co/{folder}.\nPlease pass the "
            "argument `trust_remote_code=True` to allow custom code to be run."
        )
    elif model_type is None:
        message = f"Unrecognized model in {folder}. Should have a `model_type` key in its config.json."
    else:
        message = (
            f"The checkpoint you are trying to load has model type `{model_type}` but Transformers does not recognize this "
            "architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of "
            "date.\n\nYou can update Transformers with the command `pip install --upgrade transformers`. If this does not work, and "
            "the checkpoint is very new, then there may not be a release version that supports this model yet. In this case, you can "
            "get the most up-to-date code by installing Transformers from source with the command `pip install "
            "git+https://github.com/huggingface/transformers.git`"
        )
    return r.refuse("config.model_type", "ValueError", message, question, read, model_type)


def _layer_types(r: Resolution) -> None:
    """Kinds of layers are checked by transformers itself, so it is its version that counts."""
    allowed = LAYER_TYPES.get(r.release.transformers)
    layers = r.facts.checkpoint.config.get("layer_types")
    if allowed is None or not isinstance(layers, list):
        return
    if r.release.transformers == "5.19.0":
        layers = [_OLD_LAYER_TYPES.get(kind, kind) for kind in layers]
    if all(kind in allowed for kind in layers):
        return
    message = (
        "Class validation error for validator 'validate_layer_type':\n    ValueError: The `layer_types` entries must be in "
        f"{allowed} but got {layers}"
    )
    question = "does this release's transformers know the kinds of layers?"
    unknown = ", ".join(sorted({str(kind) for kind in layers if kind not in allowed}))
    r.refuse("layer_types", "StrictDataclassClassValidationError", message, question, "config.json: layer_types", unknown)
