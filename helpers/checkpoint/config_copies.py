"""The two JSON copies of a checkpoint's quantisation: ``config.json`` (inline) and ``hf_quant_config.json`` (a file of its own).

Nothing in them is executed or trusted: size and nesting are bounded, wrong types are one-line errors, and a key that is given
twice is remembered, because which of the two a reader takes is up to the reader.
"""

import json
from pathlib import Path

from helpers.checkpoint.files import read_limited, without_gc
from helpers.errors import InputError
from helpers.findings import Finding

CONFIG = "config.json"
QUANT = "hf_quant_config.json"
MAX_CONFIG_BYTES = 64 * 2**20  # the largest real one, MiniMax-M3's, has 3 MB
MAX_LAYERS = 10_000  # each is walked; the deepest real ones have about 130
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


def read_json(path: Path, limit: int = MAX_CONFIG_BYTES) -> tuple[dict, tuple[str, ...]]:
    """The object in a JSON file, and the keys that one of its objects gives twice. InputError names the file and what to do."""
    return parse_json(read_limited(path, limit), str(path))


def parse_json(raw: bytes, where: str) -> tuple[dict, tuple[str, ...]]:
    """As read_json, from bytes. Python's own parser, because it takes what transformers takes: NaN and Infinity too."""
    twice: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            twice.extend(name for name in made if names.count(name) > 1)
        return made

    try:
        with without_gc():
            parsed = json.loads(raw.decode(), object_pairs_hook=unique)
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a model's configuration; replace it with the model's own file") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); download it again") from error
    if not isinstance(parsed, dict):
        raise InputError(f"{where}: a JSON {type(parsed).__name__} where an object is needed; replace it with the model's own file")
    return parsed, tuple(twice)


def read_copies(config: Path, hf_quant: Path | None) -> tuple[dict, dict | None, list[Finding]]:
    """(config.json, hf_quant_config.json or None, findings) from their paths."""
    parsed, twice = read_json(config)
    _check_types(parsed, config)
    findings = _given_twice(CONFIG, twice)
    if hf_quant is None:
        return parsed, None, findings
    quant, twice = read_json(hf_quant)
    return parsed, quant, findings + _given_twice(QUANT, twice)


def _check_types(config: dict, path: Path) -> None:
    """InputError for a value that every stage takes for granted: a wrong type would end a rule in the middle, or examine no layer."""
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f"{path}: architectures is {names!r:.60}, not a list of class names; restore the model's own file")
    while True:
        if not isinstance(config.get("model_type", ""), str):
            raise InputError(f"{path}: model_type is {config['model_type']!r:.60}, not a name; restore the model's own file")
        layers = config.get("num_hidden_layers", 1)
        if isinstance(layers, bool) or not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS:
            raise InputError(
                f"{path}: num_hidden_layers is {layers!r:.60}, not a number from 1 to {MAX_LAYERS:,}; restore the model's own file"
            )
        nested = [key for key in TEXT_KEYS if config.get(key) is not None]
        for key in nested:
            if not isinstance(config[key], dict):
                raise InputError(f"{path}: {key} is a {type(config[key]).__name__}, not an object; restore the model's own file")
        if not nested:
            return
        config = config[nested[0]]


def _given_twice(file: str, keys: tuple[str, ...]) -> list[Finding]:
    if not keys:
        return []
    return [
        Finding(
            id="detect.key_given_twice",
            stage="detect",
            severity="note",
            read=file,
            observed=f"given twice in one object: {', '.join(keys[:4])}",
            expected="each key once",
            why="JSON readers differ in which of the two they take; Python's, and so SGLang's, takes the last",
            source=file,
            remedy=f"remove one of the two from {file}",
        )
    ]


def copies_read_by_sglang(config: dict, hf_quant: dict | None) -> tuple[str, str, str]:
    """(copy that names the quantisation, copy that the layers are built from, why): "config.json", "hf_quant_config.json" or "none".

    From 0.5.15 to 0.5.23 (sglang 0.5.16 model_config.py: _parse_quant_hf_config; weight_utils.py: get_quant_config): the inline copy
    wins, except that the layers of what it names modelopt_mixed need a key for the KV cache there too. Older releases call only
    NemotronH mixed; what a release makes of it is the detect stage.
    """
    inline = inline_quantization(config)
    if inline is None:
        if hf_quant is None:
            return "none", "none", "neither config.json nor hf_quant_config.json says anything about quantisation"
        return QUANT, QUANT, "config.json has no quantization_config"
    if not _is_mixed(inline):
        return CONFIG, CONFIG, "config.json has a quantization_config, and no map with NVFP4 in it"
    if {"kv_cache_quant_algo", "kv_cache_scheme"} & inline.keys():
        return CONFIG, CONFIG, "the map in config.json comes with a key for the KV cache"
    if hf_quant is None:
        return CONFIG, CONFIG, "there is no other copy, although the map in config.json lacks a key for the KV cache"
    return CONFIG, QUANT, "the map in config.json lacks kv_cache_quant_algo and kv_cache_scheme"


def _is_mixed(inline: dict) -> bool:
    """Whether SGLang calls the inline copy modelopt_mixed (sglang 0.5.16 model_config.py: _parse_modelopt_quant_config)."""
    if inline.get("quant_algo") != "MIXED_PRECISION" or inline.get("quant_method", "modelopt") != "modelopt":
        return False
    layers = inline.get("quantized_layers")
    entries = [entry for entry in layers.values() if isinstance(entry, dict)] if isinstance(layers, dict) else []
    return any(str(entry.get("quant_algo")).upper() in ("NVFP4", "W4A16_NVFP4") for entry in entries)


def inline_quantization(config: dict) -> dict | None:
    """``quantization_config`` of config.json, or compressed-tensors' older ``compression_config``. InputError when not an object."""
    for key in ("quantization_config", "compression_config"):
        value = config.get(key)
        if value is not None:
            if not isinstance(value, dict):
                raise InputError(f"config.json: {key} is a {type(value).__name__}, not an object; restore the model's own file")
            return value
    return None


def text_config(config: dict) -> dict:
    """The object with the language model's dimensions: nested in multimodal configs, the config itself elsewhere."""
    for key in TEXT_KEYS:
        value = config.get(key)
        if isinstance(value, dict):
            return text_config(value)
    return config
