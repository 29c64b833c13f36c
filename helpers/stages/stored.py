"""How the checkpoint stores a module: by its tensors where the headers are known, else by what its map declares.

Compared with the method the module gets, this says whether the weights can arrive at all. Sources for what does not fit:
a packed tensor has half the columns and fails on its shape (layers/linear.py and layers/moe/fused_moe_triton/layer.py, the
weight loaders); an FP8 tensor fits a BF16 parameter and is converted without its scale (public report sglang#38726).
"""

from collections.abc import Iterator, Mapping

from helpers.checkpoint import Checkpoint, TensorTable
from helpers.stages.names import LayerAlgorithms

# What a method expects the weights to be. Methods that are not here say nothing about it.
EXPECTED = {
    "UnquantizedLinearMethod": "unquantised",
    "UnquantizedFusedMoEMethod": "unquantised",
    "ModelOptFp8LinearMethod": "FP8",
    "ModelOptFp8MoEMethod": "FP8",
    "ModelOptFp4LinearMethod": "NVFP4",
    "ModelOptNvFp4A16LinearMethod": "NVFP4",
    "ModelOptNvFp4FusedMoEMethod": "NVFP4",
}

_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj", "w1", "w3", "w2")
_FUSED_EXPERT_PARTS = ("gate_up_proj", "down_proj")


def declared_format(algorithm: str) -> str:
    """The stored format that a quant_algo stands for: "NVFP4", "FP8", "block FP8", "packed" (another 4-bit form) or "other"."""
    if algorithm in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"):
        return "NVFP4"
    if algorithm == "FP8":
        return "FP8"
    if algorithm in ("MXFP8", "FP8_PB_WO", "FP8_BLOCK_SCALES"):
        return "block FP8"
    return "packed" if "4" in algorithm else "other"


def formats(checkpoint: Checkpoint, declared: LayerAlgorithms | None, kind: str, sources: tuple[str, ...]) -> dict[str, str]:
    """Stored format -> an example name, over all parts of one module. Empty when neither headers nor map know it.

    declared: the map under the checkpoint's own names, used only without headers.
    """
    if checkpoint.tensors is not None:
        return _from_tensors(checkpoint.tensors, kind, sources)
    return _from_map(declared, sources) if declared is not None else {}


def _from_tensors(tensors: TensorTable, kind: str, sources: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for weight, stem in _weights(tensors, source) if kind == "experts" else ((f"{source}.weight", source),):
            if weight in tensors:
                found.setdefault(_stored(tensors, weight, stem), weight)
    return found


def _weights(tensors: TensorTable, block: str) -> Iterator[tuple[str, str]]:
    """(weight tensor, what its scales' names start with) of every expert of a block, fused or one by one."""
    for part in _FUSED_EXPERT_PARTS:
        if f"{block}.{part}" in tensors:
            yield f"{block}.{part}", f"{block}.{part}"
    parts = [part for part in _EXPERT_PARTS if f"{block}.0.{part}.weight" in tensors]
    expert = 0
    while parts and f"{block}.{expert}.{parts[0]}.weight" in tensors:
        for part in parts:
            yield f"{block}.{expert}.{part}.weight", f"{block}.{expert}.{part}"
        expert += 1


def _stored(tensors: TensorTable, weight: str, stem: str) -> str:
    dtype = tensors.dtype(weight)
    if dtype in ("U8", "F4"):
        scales = (f"{stem}.weight_scale_2", f"{stem}_weight_scale_2", f"{stem}.weight_global_scale")
        return "NVFP4" if any(name in tensors for name in scales) else "packed"
    if dtype == "F8_E4M3":
        scale = f"{stem}.weight_scale"
        return "FP8" if scale in tensors and tensors.shape(scale) in ((), (1,)) else "block FP8"
    return "unquantised" if dtype in ("BF16", "F16", "F32") else "other"


def _from_map(declared: LayerAlgorithms, sources: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        key = source if source in declared.layers else declared.first_child.get(source)
        if key is not None:
            found.setdefault(declared_format(_name(declared.layers[key])), key)
    return found


def _name(entry: object) -> str:
    return str(entry.get("quant_algo", "")).upper() if isinstance(entry, Mapping) else ""
