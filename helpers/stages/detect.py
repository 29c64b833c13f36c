"""Stage 1: what SGLang calls this checkpoint's quantisation, and which of the two JSON copies says so.

``ModelConfig`` reads ``config.json`` (or, when that says nothing, ``hf_quant_config.json``) and ends with one name, such as
``modelopt_fp4`` or ``modelopt_mixed``: the name of the class that will build every layer. It does so while the server checks
its arguments, so an error here is a refusal.

Sources, the same in every release unless a rule says otherwise: configs/model_config.py (ModelConfig.__init__,
_parse_quant_hf_config, _parse_modelopt_quant_config, _verify_quantization), layers/quantization/base_config.py
(_modelopt_override_quantization_method), model_loader/weight_utils.py (get_quant_config).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.config_copies import TEXT_KEYS
from helpers.deployment import RELEASES, Release, keeps_nested_section
from helpers.findings import Finding
from helpers.stages.steps import Step

CONFIG, FILE, NONE = "config.json", "hf_quant_config.json", "none"

# Entries of quantized_layers that make a MIXED_PRECISION checkpoint a ModelOpt one (from 0.5.15).
NVFP4_ALGORITHMS = ("NVFP4", "W4A16_NVFP4")

# Names `--quantization` and the checkpoint may end with: (name, first release, last release or None), in SGLang's own order,
# because the order is part of an error text. layers/quantization/__init__.py: BASE_QUANTIZATION_METHODS, on CUDA.
_METHODS = (
    ("fp8", "0.5.11", None),
    ("mxfp8", "0.5.11", None),
    ("minimax_m3_nvfp4", "0.5.23", None),
    ("blockwise_int8", "0.5.11", None),
    ("modelopt", "0.5.11", None),
    ("modelopt_fp8", "0.5.11", None),
    ("modelopt_fp4", "0.5.11", None),
    ("nvfp4_online", "0.5.14", None),
    ("modelopt_mixed", "0.5.11", None),
    ("w8a8_int8", "0.5.11", None),
    ("w8a8_fp8", "0.5.11", None),
    ("awq", "0.5.11", None),
    ("awq_marlin", "0.5.11", None),
    ("bitsandbytes", "0.5.11", None),
    ("gguf", "0.5.11", None),
    ("gptq", "0.5.11", "0.5.19"),
    ("gptq_marlin", "0.5.11", None),
    ("moe_wna16", "0.5.11", None),
    ("compressed-tensors", "0.5.11", None),
    ("qoq", "0.5.11", "0.5.15.post1"),
    ("w4afp8", "0.5.11", None),
    ("petit_nvfp4", "0.5.11", None),
    ("fbgemm_fp8", "0.5.11", "0.5.15.post1"),
    ("quark", "0.5.11", None),
    ("quark_mxfp4", "0.5.13", None),
    ("auto-round", "0.5.11", None),
    ("auto-round-int8", "0.5.15", None),
    ("modelslim", "0.5.11", None),
    ("quark_int4fp8_moe", "0.5.11", None),
    ("humming", "0.5.16", None),
    ("mxfp_w4a8", "0.5.15", None),
    ("mxfp4", "0.5.11", None),
)

# `--quantization` values that stay although the checkpoint says another name: (flag, checkpoint's names, first release).
_COMPATIBLE = (
    ("modelopt_fp8", ("modelopt",), "0.5.11"),
    ("modelopt_fp4", ("modelopt",), "0.5.11"),
    ("modelopt_fp4", ("fp8",), "0.5.18"),
    ("modelopt_mixed", ("modelopt",), "0.5.11"),
    ("petit_nvfp4", ("modelopt",), "0.5.11"),
    ("nvfp4_online", ("fp8",), "0.5.14"),
    ("nvfp4_online", ("modelopt_fp8",), "0.5.18"),
    ("minimax_m3_nvfp4", ("mxfp8",), "0.5.23"),
    ("w8a8_int8", ("compressed-tensors", "compressed_tensors"), "0.5.11"),
    ("w8a8_fp8", ("compressed-tensors", "compressed_tensors"), "0.5.11"),
    ("auto-round-int8", ("compressed-tensors", "compressed_tensors"), "0.5.15"),
)

# What `--quantization modelopt` becomes by the checkpoint's quant_algo, from 0.5.19. layers/modelopt_utils.py.
_CANONICAL = {
    "FP8": "modelopt_fp8",
    "MXFP8": "mxfp8",
    "FP4": "modelopt_fp4",
    "NVFP4": "modelopt_fp4",
    "NVFP4_AWQ": "modelopt_fp4",
    "W4A16_NVFP4": "modelopt_fp4",
}


@dataclass(frozen=True, eq=False)
class Detection:
    """What ModelConfig makes of a checkpoint when no ``--quantization`` is given.

    quantization: the name it ends with, None when the checkpoint is not quantised (or when ModelConfig raises: see error).
    quant_method, quant_algo: as the copy it reads has them, after SGLang's own parsing. copy: the JSON copy the layers'
    QuantizationConfig is built from. nvfp4_moe_meta: group size and excludes of an "FP8 with NVFP4 experts" checkpoint.
    parsed: the dictionary ModelConfig judges, None without one. error, message, place: the exception it ends in and the
    ``file: function`` that raises it, "" when none.
    """

    release: Release
    quantization: str | None
    quant_method: str | None
    quant_algo: str | None
    copy: str
    nvfp4_moe_meta: Mapping | None
    parsed: Mapping | None
    error: str
    message: str
    place: str
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Verified:
    """What ``_verify_quantization`` ends with: a name (None: not quantised), or an exception's type, text and ``file: function``."""

    quantization: str | None
    error: str = ""
    message: str = ""
    place: str = ""


_VERIFY = "configs/model_config.py: _verify_quantization"
_PARSE = "configs/model_config.py: _parse_modelopt_quant_config"


class _Refusal(Exception):
    def __init__(self, error: str, message: str, place: str):
        super().__init__(message)
        self.error, self.message, self.place = error, message, place

    @property
    def verified(self) -> Verified:
        return Verified(None, self.error, self.message, self.place)


def inline_section(checkpoint: Checkpoint, release: Release) -> object:
    """``quantization_config`` of config.json as ModelConfig sees it: its own, or the nested config's where the config class lets it."""
    if "quantization_config" in checkpoint.config or _nested_is_seen(checkpoint, release) is False:
        return checkpoint.config.get("quantization_config")
    return checkpoint.text_config.get("quantization_config")


def section_for_layers(checkpoint: Checkpoint, release: Release) -> object:
    """The same as get_quant_config sees it, which looks into text_config by itself. model_loader/weight_utils.py."""
    inline = inline_section(checkpoint, release)
    text = checkpoint.config.get("text_config")
    return text.get("quantization_config") if inline is None and isinstance(text, dict) else inline


def _nested_is_seen(checkpoint: Checkpoint, release: Release) -> bool | None:
    """Whether a section in the nested config reaches ModelConfig; None where it is not known, and the verdict abstains."""
    key = next((key for key in TEXT_KEYS if isinstance(checkpoint.config.get(key), dict)), None)
    return True if key is None else keeps_nested_section(checkpoint.config.get("model_type", ""), key, release)


@cache
def supported_methods(release: Release) -> tuple[str, ...]:
    """Every quantization name a release knows on CUDA, in its own order."""
    return tuple(name for name, first, last in _METHODS if release.at_least(first) and (last is None or not _after(release, last)))


def _after(release: Release, version: str) -> bool:
    return release.at_least(version) and release.version != version


@lru_cache(maxsize=512)
def detect(checkpoint: Checkpoint, release: Release) -> Detection:
    """The checkpoint's name on this release, from its two JSON copies alone. Computed once for each (checkpoint, release)."""
    steps: list[Step] = []
    meta, parsed, copy = None, None, NONE
    try:
        meta = _nvfp4_moe_meta(checkpoint, release)
        parsed, copy, mine = _parsed_quant_config(checkpoint, release)
        steps += mine
        verified = _verify(parsed, None, release)
    except _Refusal as refusal:
        verified = refusal.verified
    error, message = verified.error, verified.message
    quant_method, quant_algo = (parsed or {}).get("quant_method"), (parsed or {}).get("quant_algo")
    built_from, why = _copy_for_layers(checkpoint, release, verified.quantization, copy)
    if release.at_least("0.5.14"):
        steps.append(_meta_step(meta, release))
    steps.append(
        Step(
            "which name does the server use?",
            f"quant_method in {copy}",
            str(quant_method),
            f"{error}: {message}" if error else str(verified.quantization),
            f"sglang {release} {verified.place or _VERIFY}",
        )
    )
    steps.append(
        Step(
            "which copy are the layers built from?",
            why,
            copy,
            built_from,
            f"sglang {release} model_loader/weight_utils.py: get_quant_config",
        )
    )
    detection = Detection(
        release=release,
        quantization=verified.quantization,
        quant_method=quant_method,
        quant_algo=quant_algo,
        copy=built_from,
        nvfp4_moe_meta=meta,
        parsed=parsed,
        error=error,
        message=message,
        place=verified.place,
        steps=tuple(steps),
        findings=(),
    )
    return _with_findings(detection, checkpoint)


def verify_flag(detection: Detection, flag: str | None, release: Release) -> Verified:
    """The name ModelConfig ends with under ``--quantization flag`` (None or "": no flag), or the error it raises.

    For a ModelOpt checkpoint the checkpoint wins over the flag without a word; where the two cannot be reconciled, ValueError.
    model_config.py: _verify_quantization.
    """
    if detection.error and detection.parsed is None:
        return Verified(None, detection.error, detection.message, detection.place)
    try:
        return _verify(detection.parsed, flag or None, release)
    except _Refusal as refusal:
        return refusal.verified


def _parsed_quant_config(checkpoint: Checkpoint, release: Release) -> tuple[dict | None, str, list[Step]]:
    """model_config.py: _parse_quant_hf_config. The dictionary it returns, the copy it came from, and the steps."""
    source = f"sglang {release} configs/model_config.py: _parse_quant_hf_config"
    inline = inline_section(checkpoint, release)
    if inline is not None and not isinstance(inline, dict):
        place = f"utils/hf_transformers/config.py: {'parse' if release.at_least('0.5.12') else 'get_config'}"
        raise _Refusal("AttributeError", f"'{type(inline).__name__}' object has no attribute 'to_dict'", place)
    if inline is not None:
        steps = [
            Step("does config.json say how it is quantised?", "config.json: quantization_config", _keys(inline), "yes: this copy", source)
        ]
        if "quant_method" in inline and inline["quant_method"] != "modelopt":
            answer = "kept as written: not ModelOpt's"
            steps.append(Step("is it ModelOpt's?", "quant_method", str(inline["quant_method"]), answer, source))
            return dict(inline), CONFIG, steps
        named, step = _modelopt_name({"quantization": inline}, checkpoint, release)
        return {**inline, **(named or {})}, CONFIG, [*steps, step]
    steps = [Step("does config.json say how it is quantised?", "config.json: quantization_config", "absent", "no", source)]
    older = checkpoint.config.get("compression_config")
    if older is not None:
        steps.append(Step("an older compressed-tensors key?", "config.json: compression_config", "present", "yes: this copy", source))
        return dict(older), CONFIG, steps
    if checkpoint.hf_quant is None:
        steps.append(Step("is there a file of its own?", FILE, "absent", "not quantised", source))
        return None, NONE, steps
    steps.append(Step("is there a file of its own?", FILE, "present", "yes: this copy", source))
    named, step = _modelopt_name(checkpoint.hf_quant, checkpoint, release)
    return named, FILE, [*steps, step]


def _modelopt_name(whole: dict, checkpoint: Checkpoint, release: Release) -> tuple[dict | None, Step]:
    """model_config.py: _parse_modelopt_quant_config: quant_algo to a name, or None when it means nothing to SGLang."""
    source = f"sglang {release} configs/model_config.py: _parse_modelopt_quant_config"
    if release.at_least("0.5.20"):
        # unwrap_modelopt_quantization_config: flat files are accepted too.
        section = whole.get("quantization", whole)
        nested = section.get("quantization") if isinstance(section, dict) else None
        section = nested if isinstance(nested, dict) else section if isinstance(section, dict) else {}
    elif "quantization" not in whole:
        raise _Refusal("KeyError", "'quantization'", _PARSE)
    else:
        section = whole["quantization"]
        if not isinstance(section, dict):
            raise _Refusal("AttributeError", f"'{type(section).__name__}' object has no attribute 'get'", _PARSE)
    algorithm = section.get("quant_algo")
    if algorithm is not None and not isinstance(algorithm, str):
        raise _Refusal("TypeError", f"argument of type '{type(algorithm).__name__}' is not iterable", _PARSE)

    def answered(method: str | None, why: str, **more) -> tuple[dict | None, Step]:
        step = Step("what does quant_algo mean?", "quant_algo", str(algorithm), f"{method or 'nothing known'}: {why}", source)
        return ({"quant_method": method, "quant_algo": algorithm, **more} if method else None), step

    if algorithm == "MIXED_PRECISION":
        return answered(*_mixed_name(section, checkpoint, release))
    if not algorithm:
        return answered(None, "no quant_algo")
    if "FP4" in algorithm:
        return answered("modelopt_fp4", 'the text "FP4" is in it')
    if release.at_least("0.5.18"):
        if algorithm == "FP8":
            return answered("modelopt_fp8", "exactly FP8")
        if algorithm == "MXFP8":
            return answered("mxfp8", "exactly MXFP8", **_mxfp8_fields(section))
    elif "FP8" in algorithm:
        return answered("modelopt_fp8", 'the text "FP8" is in it')
    return answered(None, "no rule fits; upper and lower case count")


def _mixed_name(section: dict, checkpoint: Checkpoint, release: Release) -> tuple[str, str]:
    """MIXED_PRECISION: by content from 0.5.15, by architecture before."""
    if release.at_least("0.5.15"):
        layers = section.get("quantized_layers") or {}
        if not isinstance(layers, dict):
            raise _Refusal("AttributeError", f"'{type(layers).__name__}' object has no attribute 'values'", _PARSE)
        if any(isinstance(entry, dict) and str(entry.get("quant_algo", "")).upper() in NVFP4_ALGORITHMS for entry in layers.values()):
            return "modelopt_mixed", "its map has NVFP4 layers"
        return "w4afp8", "its map has no NVFP4 layer, so it is taken for a W4AFP8 checkpoint"
    architectures = checkpoint.config.get("architectures") or []
    if checkpoint.config.get("model_type") == "nemotron_h" or any(name.startswith("NemotronH") for name in architectures):
        return "modelopt_mixed", "a Nemotron-H model"
    return "w4afp8", "not a Nemotron-H model, so it is taken for a W4AFP8 checkpoint; its map is not looked at before 0.5.15"


def _mxfp8_fields(section: dict) -> dict:
    """What a flat MXFP8 checkpoint's config is rewritten to (from 0.5.18), so that Fp8Config accepts it; the fields that route reads."""
    excludes = section.get("exclude_modules", section.get("ignore"))
    fields = {"activation_scheme": "dynamic", "weight_block_size": [1, section.get("group_size", 32)]}
    return fields | ({} if excludes is None else {"modules_to_not_convert": excludes})


def _nvfp4_moe_meta(checkpoint: Checkpoint, release: Release) -> dict | None:
    """ModelConfig.nvfp4_moe_meta, new in 0.5.14: FP8 everywhere, NVFP4 experts, declared by one top-level key.

    model_config.py: ModelConfig.__init__. Only config.json's own copy is looked at.
    """
    inline = inline_section(checkpoint, release)
    if not release.at_least("0.5.14") or not isinstance(inline, dict):
        return None
    mixed = str(inline.get("quant_algo", "")).upper() == "MIXED_PRECISION"
    experts = str(inline.get("moe_quant_algo", "")).upper() == "NVFP4"
    if not (mixed and experts and inline.get("group_size") is not None):
        return None
    try:
        group_size = int(inline["group_size"])
    except (TypeError, ValueError) as error:
        raise _Refusal(type(error).__name__, str(error), "configs/model_config.py: __init__") from None
    return {"group_size": group_size, "exclude_modules": list(inline.get("ignore") or [])}


def _meta_step(meta: dict | None, release: Release) -> Step:
    return Step(
        "FP8 with NVFP4 experts by one key (nvfp4_moe_meta)?",
        "config.json: quant_algo, moe_quant_algo, group_size",
        "none" if meta is None else f"group_size {meta['group_size']}, {len(meta['exclude_modules'])} excludes",
        "no" if meta is None else "yes",
        f"sglang {release} configs/model_config.py: ModelConfig.__init__",
    )


def _verify(parsed: dict | None, flag: str | None, release: Release) -> Verified:
    """model_config.py: _verify_quantization. The steps in SGLang's own order."""
    name = flag.lower() if flag else None
    if parsed is not None:
        written = parsed.get("quant_method", name or "")
        if not isinstance(written, str):
            raise _Refusal("AttributeError", f"'{type(written).__name__}' object has no attribute 'lower'", _VERIFY)
        written = written.lower()
        override = _override(parsed, name, release)
        if override:
            name = written = override
        if name is None:
            name = written
        elif name != written and not _is_compatible(name, written, release):
            message = (
                f"Quantization method specified in the model config ({written}) does not match the quantization "
                f"method specified in the `quantization` argument ({name})."
            )
            return Verified(None, "ValueError", message, _VERIFY)
    if name is not None and name not in supported_methods(release):
        message = f"Unknown quantization method: {name}. Must be one of {list(supported_methods(release))}."
        return Verified(None, "ValueError", message, _VERIFY)
    return Verified(name)


def _override(parsed: dict, flag: str | None, release: Release) -> str | None:
    """The first class that claims the checkpoint, whatever the flag says: ModelOpt's do. Their override_quantization_method."""
    if release.at_least("0.5.18") and flag == "quark_mxfp4":
        return None
    if not (release.at_least("0.5.18") and flag == "nvfp4_online"):
        algorithm = parsed.get("quant_algo", "")
        if not isinstance(algorithm, str):
            place = "layers/quantization/base_config.py: _modelopt_override_quantization_method"
            raise _Refusal("AttributeError", f"'{type(algorithm).__name__}' object has no attribute 'upper'", place)
        if flag == "modelopt" and (named := _generic_modelopt(algorithm.upper(), release)):
            return named
        if parsed.get("quant_method") in ("modelopt_fp8", "modelopt_fp4"):
            return parsed["quant_method"]
    if parsed.get("quant_method") == "modelopt_mixed":
        return "modelopt_mixed"
    if flag == "humming" and release.at_least("0.5.16") and parsed.get("quant_method") != "mxfp4":
        return "humming"
    return None


def _generic_modelopt(algorithm: str, release: Release) -> str | None:
    """`--quantization modelopt`: the name by quant_algo. base_config.py: _modelopt_override_quantization_method."""
    if release.at_least("0.5.19"):
        return _CANONICAL.get(algorithm)
    if release.at_least("0.5.18"):
        if algorithm in ("MXFP8", "FP8"):
            return _CANONICAL[algorithm]
    elif "FP8" in algorithm:
        return "modelopt_fp8"
    return "modelopt_fp4" if "FP4" in algorithm else None


def _is_compatible(flag: str, written: str, release: Release) -> bool:
    if release.at_least("0.5.17") and flag == "quark_mxfp4":
        return True  # REQUANTIZATION_METHODS: requantised while it is loaded
    return any(flag == name and written in names and release.at_least(first) for name, names, first in _COMPATIBLE)


def _copy_for_layers(checkpoint: Checkpoint, release: Release, quantization: str | None, named_by: str) -> tuple[str, str]:
    """The copy the layers' config is built from, and why. weight_utils.py: get_quant_config."""
    inline = section_for_layers(checkpoint, release)
    if quantization is None:
        return NONE, "the checkpoint is not quantised"
    if not isinstance(inline, dict):
        return named_by, "the only copy"
    if quantization != "modelopt_mixed" or not release.at_least("0.5.15"):
        return CONFIG, "config.json's copy wins"
    lacking = [] if "quantized_layers" in inline else ["quantized_layers"]
    if "kv_cache_quant_algo" not in inline and "kv_cache_scheme" not in inline:
        lacking.append("kv_cache_quant_algo or kv_cache_scheme")
    if lacking:
        return FILE, f"config.json's copy of a mixed checkpoint lacks {' and '.join(lacking)}"
    return CONFIG, "config.json's copy has the map and the KV cache's format"


def _with_findings(detection: Detection, checkpoint: Checkpoint) -> Detection:
    findings = []
    release = detection.release
    if detection.error:
        findings.append(
            Finding(
                id="detect.config_refused",
                stage="detect",
                severity="refused",
                read="config.json: quantization_config" if inline_section(checkpoint, release) is not None else FILE,
                observed=f"{detection.error}: {detection.message}",
                expected="a quantisation that this release knows",
                why="ModelConfig raises while the server checks its arguments",
                source=f"sglang {release} {detection.place}",
                remedy="restore quant_algo and quant_method as the exporter writes them, in both copies",
                releases=(release.version,),
            )
        )
    findings.append(_in_text_config_alone(checkpoint, release))
    if detection.quant_algo == "MIXED_PRECISION" and detection.quantization == "w4afp8":
        findings.append(_taken_for_w4afp8(detection, checkpoint))
    return Detection(**{**vars(detection), "findings": tuple(f for f in findings if f is not None)})


def _in_text_config_alone(checkpoint: Checkpoint, release: Release) -> Finding | None:
    """The only quantization_config, where exporters do not write it. Nothing to say where the release finds it all the same."""
    nested = checkpoint.text_config.get("quantization_config")
    seen = _nested_is_seen(checkpoint, release)
    if "quantization_config" in checkpoint.config or not isinstance(nested, dict) or seen or (checkpoint.hf_quant and seen is False):
        return None
    entries = [nested, *(entry for entry in (nested.get("quantized_layers") or {}).values() if isinstance(entry, dict))]
    packed = any("4" in str(entry.get("quant_algo", "")) for entry in entries)
    common = {
        "stage": "detect",
        "read": "config.json: quantization_config of the language model's nested config",
        "expected": "quantization_config at the top level, as exporters write it",
        "source": f"sglang {release} utils/hf_transformers/config.py: get_config",
        "remedy": "move quantization_config to the top level of config.json",
        "releases": (release.version,),
    }
    if seen is None:
        return Finding(
            id="detect.only_in_text_config",
            severity="abstained",
            observed="the only quantization_config, inside the nested config",
            why=f"whether SGLang sees it there depends on the config class of {checkpoint.config.get('model_type')!r}, which was not asked",
            **common,
        )
    return Finding(
        id="detect.nested_section_lost",
        severity="fails_to_load" if packed else "wrong_output",
        observed="the only quantization_config is in the nested config, and this model type's config class loses it",
        why="the server takes the model for unquantised, without a message; "
        + ("packed weights do not fit its parameters" if packed else "its weights are converted without their scales"),
        **common,
    )


def _taken_for_w4afp8(detection: Detection, checkpoint: Checkpoint) -> Finding | None:
    """A ModelOpt map that ends in the W4AFP8 loader: its NVFP4 and FP8 scales have no parameter there."""
    layers = _layers_anywhere(checkpoint, detection.release)
    if not layers:
        return None  # the bare form is what a real W4AFP8 checkpoint looks like
    nvfp4 = sum(str(entry.get("quant_algo", "")).upper() in NVFP4_ALGORITHMS for entry in layers.values() if isinstance(entry, dict))
    before = tuple(known.version for known in RELEASES if not known.at_least("0.5.15"))
    return Finding(
        id="detect.mixed_taken_for_w4afp8",
        stage="detect",
        severity="wrong_output",
        read=f"{detection.copy}: quantized_layers",
        observed=f"w4afp8, for a map of {len(layers)} layers of which {nvfp4} are NVFP4",
        expected="modelopt_mixed",
        why="the W4AFP8 classes have no parameter for ModelOpt's scales: the load stops, or the scales stay uninitialised",
        source=f"sglang {detection.release} configs/model_config.py: _parse_modelopt_quant_config",
        remedy="use SGLang 0.5.15 or newer" if nvfp4 else "export with a recipe whose map has NVFP4 layers, or as flat FP8",
        reference="https://github.com/sgl-project/sglang/pull/28099",
        releases=before if nvfp4 else tuple(known.version for known in RELEASES),
    )


def _layers_anywhere(checkpoint: Checkpoint, release: Release) -> dict:
    inline = inline_section(checkpoint, release)
    file = (checkpoint.hf_quant or {}).get("quantization")
    for section in (inline, file):
        if isinstance(section, dict) and isinstance(section.get("quantized_layers"), dict):
            return section["quantized_layers"]
    return {}


def _keys(section: dict) -> str:
    return ", ".join(section) if len(section) <= 8 else f"{', '.join(list(section)[:8])} … ({len(section)} keys)"
