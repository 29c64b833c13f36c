"""Which method class SGLang gives a module: `get_quant_method` of each QuantizationConfig, by release.

A method decides how the module's weights are laid out and which kernels can run. Class names are SGLang's own.
Sources: layers/quantization/modelopt_quant.py, fp8.py, w4afp8.py, mxfp4.py, compressed_tensors/compressed_tensors.py
(get_quant_method of each), layers/moe/fused_moe_triton/layer.py and layers/vocab_parallel_embedding.py (what stands in when it
returns None).
"""

from dataclasses import dataclass

from helpers.deployment import Release
from helpers.stages import compressed
from helpers.stages.names import Match, Resolution, Unloadable, candidates_of
from helpers.stages.quant_config import MODELOPT, Spec

# What a module has when the quantisation config gives it no method.
UNQUANTIZED = {
    "experts": "UnquantizedFusedMoEMethod",
    "linear": "UnquantizedLinearMethod",
    "lm_head": "UnquantizedEmbeddingMethod",
    "embedding": "UnquantizedEmbeddingMethod",
    "attention": "",
}
NVFP4_EXPERTS = "ModelOptNvFp4FusedMoEMethod"
ONLINE_EXPERTS = "ModelOptNvFp4OnlineFusedMoEMethod"  # a subclass that quantises while it loads
UNRESOLVED = Resolution(None, None, "", ())

# algorithm in the map -> (method of a linear module, of an expert block, first release of either). modelopt_quant.py:
# ModelOptMixedPrecisionConfig.get_quant_method.
_MIXED = (
    ("FP8", "ModelOptFp8LinearMethod", "0.5.11", "ModelOptFp8MoEMethod", "0.5.11"),
    ("NVFP4", "ModelOptFp4LinearMethod", "0.5.11", NVFP4_EXPERTS, "0.5.11"),
    ("W4A16_NVFP4", "ModelOptNvFp4A16LinearMethod", "0.5.15", NVFP4_EXPERTS, "0.5.15"),
    ("MXFP8", "Fp8LinearMethod", "0.5.17", "Fp8MoEMethod", "0.5.17"),
    ("FP8_PB_WO", "Fp8LinearMethod", "0.5.18", "Fp8MoEMethod", "0.5.21"),
    ("FP8_BLOCK_SCALES", "Fp8LinearMethod", "0.5.20", "Fp8MoEMethod", "0.5.20"),
)


@dataclass(frozen=True)
class Choice:
    """One module's outcome. algorithm: what the checkpoint is taken to say, None for nothing. method: SGLang's class ("": none).

    excluded: why it is left out of quantisation, if it is. resolution: how a mixed checkpoint's map was searched. source: the
    function that decided.
    """

    algorithm: str | None
    method: str
    excluded: Match | None
    resolution: Resolution
    source: str


def choose(spec: Spec | None, prefix: str, kind: str, release: Release) -> Choice:
    """The method of one module. Unloadable when SGLang raises while it builds that module."""
    if spec is None:
        return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, "no quantisation config")
    chooser = _CHOOSERS.get(spec.cls)
    if chooser is None:
        return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, f"assumed: {spec.name} is not modelled")
    return chooser(spec, prefix, kind, release)


def _as_linear(kind: str, release: Release) -> bool:
    """From 0.5.15 ModelOpt's classes treat a ParallelLMHead like a linear module."""
    return kind == "linear" or (kind == "lm_head" and release.at_least("0.5.15"))


def _flat(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """ModelOptQuantConfig._get_quant_method: one algorithm for every module that is not excluded."""
    source = f"{MODELOPT}: _get_quant_method"
    fp8 = spec.cls == "ModelOptFp8Config"
    algorithm = "FP8" if fp8 else "W4A16_NVFP4" if spec.w4a16 else "NVFP4"
    if kind == "attention":
        return Choice(None, "ModelOptFp8KVCacheMethod" if spec.kv_cache else "", None, UNRESOLVED, source)
    if not spec.serialized and kind != "experts" and release.at_least("0.5.18"):
        unquantized = "UnquantizedLinearMethod" if _as_linear(kind, release) else UNQUANTIZED[kind]
        return Choice(None, unquantized, None, UNRESOLVED, f"{MODELOPT}: ModelOptFp4Config.get_quant_method")
    if _as_linear(kind, release):
        excluded = spec.excludes.skipped_by(prefix, spec.packed) or spec.excludes.excluded_by(prefix)
        if excluded:
            return Choice(None, "UnquantizedLinearMethod", excluded, UNRESOLVED, source)
        a16 = spec.w4a16 and release.at_least("0.5.19")
        method = "ModelOptFp8LinearMethod" if fp8 else "ModelOptNvFp4A16LinearMethod" if a16 else "ModelOptFp4LinearMethod"
        return Choice(algorithm, method, None, UNRESOLVED, source)
    if kind == "experts":
        excluded = spec.excludes.excluded_by(prefix)
        if excluded:
            return Choice(None, UNQUANTIZED[kind], excluded, UNRESOLVED, source)
        return Choice(algorithm, "ModelOptFp8MoEMethod" if fp8 else NVFP4_EXPERTS, None, UNRESOLVED, source)
    return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, source)


def _mixed(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """ModelOptMixedPrecisionConfig.get_quant_method: the map's algorithm, module by module. The map is searched first."""
    source = f"{MODELOPT}: ModelOptMixedPrecisionConfig.get_quant_method"
    found = spec.layers.resolve(prefix, spec.packed, candidates=candidates_of(release))
    if kind == "attention":
        return Choice(None, "ModelOptFp8KVCacheMethod" if spec.kv_cache else "", None, found, source)
    if _as_linear(kind, release):
        excluded = spec.excludes.skipped_by(prefix, spec.packed) or spec.excludes.excluded_by(prefix)
        if excluded:
            return Choice(None, "UnquantizedLinearMethod", excluded, found, source)
        method = next((m for a, m, first, _, _ in _MIXED if a == found.algorithm and release.at_least(first)), "UnquantizedLinearMethod")
        return Choice(found.algorithm, method, None, found, source)
    if kind == "embedding" and release.at_least("0.5.18"):
        excluded = spec.excludes.skipped_by(prefix, spec.packed) or spec.excludes.excluded_by(prefix)
        nvfp4 = excluded is None and found.algorithm == "NVFP4"
        return Choice(found.algorithm, "ModelOptNvFp4EmbeddingMethod" if nvfp4 else UNQUANTIZED[kind], excluded, found, source)
    if kind == "experts":
        excluded = spec.excludes.excluded_by(prefix)
        if excluded:
            return Choice(None, UNQUANTIZED[kind], excluded, found, source)
        method = next((m for a, _, _, m, first in _MIXED if a == found.algorithm and release.at_least(first)), UNQUANTIZED[kind])
        return Choice(found.algorithm, method, None, found, source)
    return Choice(found.algorithm, UNQUANTIZED[kind], None, found, source)


def _fp8(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """Fp8Config.get_quant_method. lm_head is no linear module there."""
    source = "layers/quantization/fp8.py: Fp8Config.get_quant_method"
    algorithm = "MXFP8" if spec.name == "mxfp8" else "FP8_BLOCK" if spec.block else "FP8"
    if kind == "attention":
        return Choice(None, "Fp8KVCacheMethod", None, UNRESOLVED, source)
    if kind not in ("linear", "experts"):
        return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, source)
    skipped = spec.excludes.skipped_by(prefix, spec.packed)
    if skipped:
        return Choice(None, UNQUANTIZED[kind], skipped, UNRESOLVED, source)
    return Choice(algorithm, "Fp8LinearMethod" if kind == "linear" else "Fp8MoEMethod", None, UNRESOLVED, source)


def _online(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """NvFp4OnlineConfig.get_quant_method under ``--quantization modelopt_fp4``. lm_head and attention are never asked for."""
    source = "layers/quantization/nvfp4_online.py: get_quant_method"
    if kind not in ("linear", "experts"):
        return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, source)
    excluded = spec.excludes.skipped_by(prefix, spec.packed) or spec.excludes.excluded_by(prefix)
    if excluded:
        return Choice(None, UNQUANTIZED[kind], excluded, UNRESOLVED, source)
    if kind == "experts":
        return Choice("NVFP4", ONLINE_EXPERTS, None, UNRESOLVED, source)
    method = "Fp8LinearMethod" if spec.serialized else "UnquantizedLinearMethod"
    return Choice("FP8" if spec.serialized else None, method, None, UNRESOLVED, source)


def _hybrid(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """HybridFp8NvFp4Config.get_quant_method: expert blocks by the NVFP4 config, the rest by FP8."""
    if kind == "experts":
        excluded = spec.experts.excludes.excluded_by(prefix)
        if excluded is None:
            source = f"{MODELOPT}: HybridFp8NvFp4Config.get_quant_method"
            return Choice("NVFP4", NVFP4_EXPERTS, None, UNRESOLVED, source)
    return _fp8(spec, prefix, kind, release)


def _w4afp8(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """W4AFp8Config.get_quant_method: nothing of the checkpoint's map or excludes is looked at."""
    source = "layers/quantization/w4afp8.py: W4AFp8Config.get_quant_method"
    methods = {"linear": ("FP8_BLOCK", "Fp8LinearMethod"), "experts": ("W4AFP8", "W4AFp8MoEMethod")}
    algorithm, method = methods.get(kind, (None, UNQUANTIZED[kind]))
    return Choice(algorithm, method, None, UNRESOLVED, source)


def _mxfp4(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """Mxfp4Config.get_quant_method."""
    source = "layers/quantization/mxfp4.py: Mxfp4Config.get_quant_method"
    if kind == "experts":
        return Choice("MXFP4", "Mxfp4MoEMethod" if spec.serialized else "Mxfp4DynamicQuantMoEMethod", None, UNRESOLVED, source)
    if kind == "linear":
        raise Unloadable("AssertionError", "", "layers/linear.py: __init__")  # no method at all for a linear module
    if spec.serialized:
        raise Unloadable("NotImplementedError", "Mxfp4 attention layer is not implemented", source)
    return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, source)


def _compressed(spec: Spec, prefix: str, kind: str, release: Release) -> Choice:
    """CompressedTensorsConfig.get_quant_method: by the config group whose target fits."""
    source = "layers/quantization/compressed_tensors/compressed_tensors.py: get_quant_method"
    if kind not in ("linear", "experts"):
        return Choice(None, UNQUANTIZED[kind], None, UNRESOLVED, source)
    algorithm, matched = compressed.algorithm_of(spec.section, spec.excludes.patterns, prefix, kind, spec.packed, release)
    if algorithm is None:
        return Choice(None, UNQUANTIZED[kind], Match(matched, prefix) if matched else None, UNRESOLVED, source)
    method = "CompressedTensorsLinearMethod" if kind == "linear" else "CompressedTensorsFusedMoEMethod"
    return Choice(algorithm, method, None, Resolution(algorithm, matched, "target", ((prefix, matched),)), source)


_CHOOSERS = {
    "ModelOptFp8Config": _flat,
    "ModelOptFp4Config": _flat,
    "ModelOptMixedPrecisionConfig": _mixed,
    "_ModelOptFp4OnlineConfig": _online,
    "Fp8Config": _fp8,
    "HybridFp8NvFp4Config": _hybrid,
    "W4AFp8Config": _w4afp8,
    "Mxfp4Config": _mxfp4,
    "CompressedTensorsConfig": _compressed,
}
