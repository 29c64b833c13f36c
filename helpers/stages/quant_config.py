"""The QuantizationConfig SGLang builds from a checkpoint: what it keeps of the JSON, and what it refuses.

`quant_spec` follows ``from_config`` of each class for one release and returns a `Spec`: excludes, per-layer map, group size.
Where SGLang raises, it raises `Unloadable` with the same type and text: the server then dies while it builds the model.

Sources: model_loader/weight_utils.py (get_quant_config), model_loader/loader.py (_get_quantization_config), and the classes of
layers/quantization: modelopt_quant.py, fp8.py, w4afp8.py, compressed_tensors/compressed_tensors.py, mxfp4.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from helpers.checkpoint import Checkpoint
from helpers.deployment import Release
from helpers.stages.detect import CONFIG, FILE, NVFP4_ALGORITHMS, Detection, inline_section, section_for_layers
from helpers.stages.names import Excludes, LayerAlgorithms, Mapper, Unloadable

MODELOPT = "layers/quantization/modelopt_quant.py"
BLOCK_FP8 = ("FP8_PB_WO", "FP8_BLOCK_SCALES")


@dataclass(frozen=True, eq=False)
class Spec:
    """One QuantizationConfig. cls: SGLang's class. name: its get_name(), which several rules of the server compare.

    kv_cache: is the KV cache given a method of its own? min_capability: as it returns it (100: Blackwell).
    w4a16: a flat W4A16_NVFP4 checkpoint. block: block size of an FP8 checkpoint, None without. experts: the inner config of
    the NVFP4 experts of a hybrid checkpoint.
    """

    cls: str
    name: str
    excludes: Excludes
    min_capability: int
    layers: LayerAlgorithms | None = None
    packed: Mapping = field(default_factory=dict)
    group_size: int | None = None
    kv_cache: bool = False
    w4a16: bool = False
    block: tuple[int, ...] | None = None
    serialized: bool = True
    experts: "Spec | None" = None
    section: Mapping = field(default_factory=dict)


def quant_spec(
    checkpoint: Checkpoint,
    detection: Detection,
    release: Release,
    quantization: str | None,
    *,
    packed: Mapping,
    mapper: Mapper | None,
    remap: bool,
) -> Spec | None:
    """What `_get_quantization_config` returns for that quantisation name; None when there is none. Unloadable when it raises."""
    if quantization is None:
        return None
    section, from_file = _section(checkpoint, detection, release, quantization, remap)
    reader = _READERS.get(quantization)
    if from_file and quantization.startswith("modelopt"):
        reader = _reader_by_producer(section, quantization, checkpoint.architecture, release) or reader
    if reader is None:
        return Spec("", quantization, Excludes(()), 0, packed=packed, section=section or {})
    spec = reader(section, release)
    spec = replace(spec, packed=packed, section=section or {})
    meta = detection.nvfp4_moe_meta
    if meta is not None and spec.cls == "Fp8Config":
        spec = _hybrid(spec, meta, release)
    return _renamed(spec, mapper, release) if mapper is not None else spec


def _section(checkpoint, detection, release, quantization, remap) -> tuple[dict | None, bool]:
    """The dictionary `from_config` gets, and whether it is the file's nested form. weight_utils.py: get_quant_config."""
    inline = section_for_layers(checkpoint, release)
    if inline is None:
        inline = checkpoint.config.get("compression_config")
    if isinstance(inline, dict) and not (quantization == "modelopt_mixed" and detection.copy == FILE):
        # ModelConfig wrote its findings back into this dictionary (detect: quant_method, quant_algo).
        judged = detection.copy == CONFIG and inline_section(checkpoint, release) is not None
        return {**inline, **(detection.parsed or {})} if judged else dict(inline), False
    if quantization not in ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed"):
        return None, False  # these classes name no config file: they are built with their defaults
    if checkpoint.hf_quant is None:
        if quantization == "modelopt_fp4" and release.at_least("0.5.18"):
            return None, False  # load-time quantisation of the experts
        raise Unloadable("ValueError", f"Cannot find the config file for {quantization}", "model_loader/weight_utils.py: get_quant_config")
    return _file_section(checkpoint.hf_quant, release, remap)


def _file_section(whole: dict, release: Release, remap: bool) -> tuple[dict, bool]:
    """hf_quant_config.json. remap: the model class renames its excludes here, as its mapper does once more; they must be there."""
    if remap and not release.at_least("0.5.20") and "exclude_modules" not in whole.get("quantization", {}):
        raise Unloadable("KeyError", "'exclude_modules'", "model_loader/weight_utils.py: get_quant_config (remap_prefix)")
    return whole, True


def _reader_by_producer(whole: dict, quantization: str, architecture: str, release: Release) -> Callable | None:
    """A file that names ModelOpt as its producer is read by its own quant_algo, whatever the other copy says. get_quant_config."""
    place = "model_loader/weight_utils.py: get_quant_config"
    producer = whole.get("producer", {})
    if not isinstance(producer, dict):
        raise Unloadable("AttributeError", f"'{type(producer).__name__}' object has no attribute 'get'", place)
    if not str(producer.get("name", "")).startswith("modelopt"):
        return None
    if release.at_least("0.5.20"):
        section = whole["quantization"] if isinstance(whole.get("quantization"), dict) else whole
    elif "quantization" in whole:
        section = whole["quantization"]
    else:
        raise Unloadable("KeyError", "'quantization'", place)
    algorithm = section.get("quant_algo")
    if algorithm is None:
        if not release.at_least("0.5.20") and "quant_algo" not in section:
            raise Unloadable("KeyError", "'quant_algo'", place)
        message = f"Invalid quant_config, quantization method: {quantization},hf architectures: {architecture}. "
        raise Unloadable("ValueError", message, place)
    if algorithm == "FP8" or quantization == "modelopt_fp8":
        return _read_fp8
    return _read_fp4 if "FP4" in algorithm else None


# --- ModelOpt, flat ---------------------------------------------------------------------------------------------------


def _read_fp8(config: dict | None, release: Release) -> Spec:
    """modelopt_quant.py: ModelOptFp8Config.from_config."""
    config = config or {}
    algorithm = config.get("quant_algo")
    source = f"{MODELOPT}: ModelOptFp8Config.from_config"
    if algorithm is not None:
        scheme = config.get("kv_cache_scheme")
        if isinstance(scheme, dict):
            cache = scheme.get("type") == "float" and scheme.get("num_bits") == 8
        else:
            cache = release.at_least("0.5.15") and config.get("kv_cache_quant_algo")
        excludes = config.get("ignore")
    else:
        section = config.get("quantization")
        if section is None:
            raise Unloadable(
                "ValueError",
                "Cannot find 'quant_algo' in the model's quantization config. "
                "Expected either flat format (config.json) or nested format (hf_quant_config.json).",
                source,
            )
        algorithm, cache, excludes = section.get("quant_algo"), section.get("kv_cache_quant_algo"), section.get("exclude_modules")
    if algorithm is None:
        raise Unloadable("ValueError", "Cannot find 'quant_algo' in the model's quantization config. ", source)
    if release.at_least("0.5.18"):
        if algorithm != "FP8":
            raise Unloadable(
                "ValueError",
                f"ModelOptFp8Config only supports regular FP8 quantization, but found {algorithm!r}. Use the native 'mxfp8' "
                "quantization method for MXFP8 or ModelOptFp4Config for FP4.",
                source,
            )
    elif "FP8" not in algorithm:
        raise Unloadable(
            "ValueError",
            "ModelOptFp8Config only supports static FP8 quantization in SGLang. For FP4 quantization, use ModelOptFp4Config. "
            "Check the quantization config for your model's configuration.",
            source,
        )
    return Spec("ModelOptFp8Config", "modelopt_fp8", _excludes(excludes, release), 89, kv_cache=bool(cache))


_FP4_ACCEPTED = (
    ("0.5.19", ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"), "FP8, NVFP4, NVFP4_AWQ, W4A16_NVFP4 quantizations"),
    ("0.5.17", ("FP8", "NVFP4", "NVFP4_AWQ"), "FP8, NVFP4, NVFP4_AWQ quantizations"),
    ("0.5.11", ("FP8", "NVFP4"), "FP8, NVFP4 quantizations"),
)


def _read_fp4(config: dict | None, release: Release) -> Spec:
    """modelopt_quant.py: ModelOptFp4Config.from_config."""
    source = f"{MODELOPT}: ModelOptFp4Config.from_config"
    capability = 80 if release.at_least("0.5.13") else 100
    if config is None or (release.at_least("0.5.18") and str(config.get("quant_method", "")).lower() == "fp8"):
        return _read_online(config or {}, release)
    algorithm = config.get("quant_algo")
    if algorithm is not None:
        group_size = config.get("group_size")
        if group_size is None:
            group_size = _group_size_of_first_group(config)
        if group_size is None and release.at_least("0.5.17") and "NVFP4" in algorithm:
            group_size = 16
        excludes = config.get("ignore", [])
        if release.at_least("0.5.23"):
            excludes = config.get("ignore", config.get("modules_to_not_convert", config.get("exclude_modules", [])))
    else:
        section = config.get("quantization")
        try:
            algorithm = section["quant_algo"]
            group_size = _common_group_size(config)
        except (KeyError, TypeError, ValueError):
            raise Unloadable(
                "ValueError",
                "Cannot find 'quant_algo' in the model's quantization config. "
                "Expected either flat format (config.json) or nested format (hf_quant_config.json).",
                source,
            ) from None
        excludes = section.get("exclude_modules", [])
    accepted, text = next((names, text) for first, names, text in _FP4_ACCEPTED if release.at_least(first))
    if algorithm not in accepted:
        raise Unloadable(
            "ValueError",
            f"ModelOpt currently only supports: {text} in sglang. Please check the quantization config for your model's configuration.",
            source,
        )
    if group_size is None or excludes is None:
        raise Unloadable(
            "ValueError", "NVFP4 quantization requires group_size and exclude_modules specified in the quantization config", source
        )
    return Spec(
        "ModelOptFp4Config",
        "modelopt_fp4",
        _excludes(excludes, release),
        capability,
        group_size=group_size,
        kv_cache=True,  # whatever the checkpoint says: where it says nothing, the class writes "auto"
        w4a16=algorithm == "W4A16_NVFP4",
        serialized="NVFP4" in algorithm,
    )


def _read_online(config: dict, release: Release) -> Spec:
    """nvfp4_online.py: _ModelOptFp4OnlineConfig (from 0.5.18): experts become NVFP4 while they are loaded, the rest stays what it is."""
    names = config.get("ignore") or config.get("ignored_layers") or config.get("modules_to_not_convert") or []
    return Spec(
        "_ModelOptFp4OnlineConfig",
        "modelopt_fp4",
        _excludes(_with_and_without_model(names), release),
        80,
        group_size=16,
        block=_block(config),
        serialized=bool(config),
    )


def _with_and_without_model(names: list[str]) -> list[str]:
    """Each name both ways, as fp8.py and nvfp4_online.py keep it."""
    bases = [name.removeprefix("model.") for name in names]
    return list(dict.fromkeys(form for base in bases for form in (base, f"model.{base}")))


def _block(config: dict) -> tuple[int, ...] | None:
    block = config.get("weight_block_size")
    return None if block is None else tuple(block)


def _group_size_of_first_group(config: dict) -> int | None:
    groups = config.get("config_groups") or {}
    first = next(iter(groups.values()), {})
    return first.get("weights", {}).get("group_size")


def _common_group_size(config: dict) -> int:
    """ModelOptFp4Config.common_group_size: the one group size anywhere in the file; ValueError when none or several."""
    found = set()
    sections = [config, config.get("quantization")]
    for group in (config.get("config_groups") or {}).values():
        sections += [group, *(group.values() if isinstance(group, dict) else ())]
    for section in sections:
        if isinstance(section, dict) and isinstance(section.get("group_size"), int):
            found.add(section["group_size"])
    if len(found) != 1:
        raise ValueError("no single group_size")
    return found.pop()


# --- ModelOpt, mixed --------------------------------------------------------------------------------------------------


def _read_mixed(config: dict | None, release: Release) -> Spec:
    """modelopt_quant.py: ModelOptMixedPrecisionConfig.from_config."""
    source = f"{MODELOPT}: ModelOptMixedPrecisionConfig.from_config"
    config = config or {}
    algorithm = config.get("quant_algo")
    if algorithm is not None:
        cache = isinstance(config.get("kv_cache_scheme"), dict) or (release.at_least("0.5.15") and config.get("kv_cache_quant_algo"))
        excludes = config.get("ignore")
        if release.at_least("0.5.17"):
            excludes = config.get("ignore", config.get("exclude_modules"))
        layers = config.get("quantized_layers", {})
    elif "quantization" not in config:
        raise Unloadable(
            "ValueError",
            "Cannot find any of ['quantization'] in the model's quantization config.",
            "layers/quantization/base_config.py: get_from_keys",
        )
    else:
        section = config["quantization"]
        algorithm, cache = section.get("quant_algo"), section.get("kv_cache_quant_algo")
        excludes, layers = section.get("exclude_modules"), section.get("quantized_layers", {})
    if algorithm != "MIXED_PRECISION":
        raise Unloadable("ValueError", "ModelOptMixedPrecisionConfig only supports MIXED_PRECISION checkpoints.", source)
    if not layers:
        raise Unloadable("ValueError", "MIXED_PRECISION quantization requires a non-empty quantized_layers map.", source)
    counted = NVFP4_ALGORITHMS if release.at_least("0.5.15") else ("NVFP4",)
    group_size = next((entry.get("group_size", 16) for entry in layers.values() if _algorithm_name(entry, source) in counted), 16)
    block = (128, 128)
    if release.at_least("0.5.21"):
        sizes = {int(entry.get("group_size", 128)) for entry in layers.values() if _algorithm_name(entry, source) in BLOCK_FP8}
        if len(sizes) > 1:
            message = f"MIXED_PRECISION currently requires all block-FP8 layers to use one group_size, got {sorted(sizes)}."
            raise Unloadable("ValueError", message, source)
        size = next(iter(sizes), 128)
        block = (size, size)
    return Spec(
        "ModelOptMixedPrecisionConfig",
        "modelopt_mixed",
        _excludes(excludes, release),
        80 if release.at_least("0.5.13") else 100,
        layers=LayerAlgorithms(layers),
        group_size=group_size,
        kv_cache=bool(cache),
        block=block,
    )


def _algorithm_name(entry: object, source: str) -> str:
    if not isinstance(entry, dict):
        raise Unloadable("AttributeError", f"'{type(entry).__name__}' object has no attribute 'get'", source)
    name = entry.get("quant_algo", "")
    if not isinstance(name, str):
        raise Unloadable("AttributeError", f"'{type(name).__name__}' object has no attribute 'upper'", source)
    return name.upper()


# --- FP8 with or without NVFP4 experts, W4AFP8, compressed-tensors, MXFP4 ---------------------------------------------


def _read_native_fp8(config: dict | None, release: Release) -> Spec:
    """fp8.py: Fp8Config.from_config."""
    source = "layers/quantization/fp8.py: Fp8Config.from_config"
    if config is None:
        return Spec("Fp8Config", "fp8", Excludes(()), 80, serialized=False)
    for key in ("quant_method", "activation_scheme"):
        if key not in config:
            raise Unloadable("ValueError", f"Cannot find any of ['{key}'] in the model's quantization config.", source)
    mx = "mxfp8" in config["quant_method"]
    if config["activation_scheme"] not in ("static", "dynamic"):
        raise Unloadable("ValueError", f"Unsupported activation scheme {config['activation_scheme']}", source)
    names = _with_and_without_model(config.get("ignored_layers", config.get("modules_to_not_convert")) or [])
    block = config.get("weight_block_size")
    if mx and (block is not None or release.at_least("0.5.16")):
        block = [1, 32]  # the format's own; what the checkpoint says is ignored
    if block is not None:
        if len(block) != 2:
            message = f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions."
            raise Unloadable("ValueError", message, source)
        if config["activation_scheme"] != "dynamic":
            message = (
                "The block-wise quantization only supports dynamic activation scheme for now, "
                f"but got {config['activation_scheme']} activation scheme."
            )
            raise Unloadable("ValueError", message, source)
    return Spec(
        "Fp8Config",
        "mxfp8" if mx else "fp8",
        _excludes(names, release),
        100 if mx else 80,
        block=(1, 32) if mx else None if block is None else tuple(block),
        serialized="fp8" in config["quant_method"],
    )


def _read_mxfp8(config: dict | None, release: Release) -> Spec:
    """The same class; without a section of its own the model is converted while it is loaded. weight_utils.py: get_quant_config."""
    if config is None:
        return Spec("Fp8Config", "mxfp8", Excludes(()), 100, block=(1, 32), serialized=False)
    return _read_native_fp8(config, release)


def _hybrid(spec: Spec, meta: Mapping, release: Release) -> Spec:
    """modelopt_quant.py: HybridFp8NvFp4Config (from 0.5.14): FP8 as declared, FusedMoE as NVFP4. It leaves draft models out too."""
    size, excludes = meta["group_size"], _excludes(meta["exclude_modules"], release)
    experts = Spec("ModelOptFp4Config", "modelopt_fp4", excludes, 80, packed=spec.packed, group_size=size)
    return replace(spec, cls="HybridFp8NvFp4Config", experts=experts, group_size=size)


def _read_w4afp8(config: dict | None, release: Release) -> Spec:
    """w4afp8.py: W4AFp8Config.from_config: INT4 experts, FP8 in blocks of 128 elsewhere, whatever the JSON says."""
    return Spec("W4AFp8Config", "w4afp8", Excludes(()), 90, group_size=128, block=(128, 128))


def _read_compressed_tensors(config: dict | None, release: Release) -> Spec:
    """compressed_tensors.py: CompressedTensorsConfig.from_config."""
    config = config or {}
    return Spec("CompressedTensorsConfig", "compressed_tensors", Excludes(config.get("ignore") or ()), 70)


def _read_mxfp4(config: dict | None, release: Release) -> Spec:
    """mxfp4.py: Mxfp4Config.from_config; modules_to_not_convert is not read."""
    serialized = config is not None and "mxfp4" in config.get("quant_method", "")
    return Spec("Mxfp4Config", "mxfp4", Excludes(()), 80, serialized=serialized)


def _excludes(names: object, release: Release) -> Excludes:
    return Excludes(names or (), strip_dots=release.at_least("0.5.13"))


def _renamed(spec: Spec, mapper: Mapper, release: Release) -> Spec:
    """apply_weight_name_mapper: the model class's renaming, applied to excludes and map keys."""
    if spec.cls == "W4AFp8Config" or not spec.cls:
        return spec
    if spec.cls == "Fp8Config":
        names = dict.fromkeys(map(mapper.rename, spec.excludes.patterns))
        return replace(spec, excludes=_excludes(list(names), release))
    spec = replace(spec, excludes=_excludes(mapper.rename_excludes(spec.excludes.patterns), release))
    if spec.layers is not None:
        renamed = {mapper.rename(name): entry for name, entry in spec.layers.layers.items()}
        spec = replace(spec, layers=LayerAlgorithms(renamed))
    if spec.experts is not None:
        spec = replace(spec, experts=_renamed(spec.experts, mapper, release))
    return spec


_READERS = {
    "modelopt": _read_fp8,
    "modelopt_fp8": _read_fp8,
    "modelopt_fp4": _read_fp4,
    "modelopt_mixed": _read_mixed,
    "fp8": _read_native_fp8,
    "mxfp8": _read_mxfp8,
    "w4afp8": _read_w4afp8,
    "compressed-tensors": _read_compressed_tensors,
    "mxfp4": _read_mxfp4,
}
