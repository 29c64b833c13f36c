"""What each module really is, by its tensors: the headers' side of the layer map.

A quantised linear is a weight and its scales, and their names, dtypes and shapes tell the formats apart. ModelOpt's NVFP4 is a packed
U8 ``weight``, an F8_E4M3 ``weight_scale`` a block of 16, a scalar ``weight_scale_2`` and, when activations are quantised too (W4A4),
a scalar ``input_scale``. compressed-tensors has the same under other names; fused experts (Llama-4, gpt-oss) join the name of the
projection and the suffix with an underscore.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from helpers.checkpoint.tensor_table import TensorTable

Part = tuple[str, str, tuple[int, ...]]  # suffix, dtype, shape

# What a suffix is in a format. "scale" is DeepSeek's own; "blocks" and "scales" are gpt-oss' MXFP4.
ROLES = {
    "weight": "weight",
    "weight_packed": "weight",
    "qweight": "weight",
    "blocks": "weight",
    "weight_scale": "scale",
    "weight_scale_inv": "scale",
    "scale": "scale",
    "scales": "scale",
    "weight_scale_2": "global",
    "weight_global_scale": "global",
    "input_scale": "input",
    "input_global_scale": "input",
}
_FUSED = re.compile(r"([a-z0-9_]*_proj)(?:_(weight|weight_scale|weight_scale_2|input_scale|blocks|scales))?")
_FP8 = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class ExpertBlock:
    """One block of routed experts, by its tensors.

    experts: their numbers, sorted; fused experts have none and count by the first dimension. projections: the names inside an expert.
    algorithms: algorithm -> number of projections (over all experts) that have it.
    """

    name: str
    fused: bool
    experts: tuple[int, ...]
    projections: tuple[str, ...]
    algorithms: dict[str, int]


class TensorModules:
    """The modules of a TensorTable. parts: the distinct (suffix, dtype, shape); masks: module -> bits, bit i for parts[i]."""

    def __init__(self, table: TensorTable):
        bits = _Bits()
        masks: dict[str, int] = {}
        for name, form in zip(table.names, table.form, strict=True):
            module, _, suffix = name.rpartition(".")
            bit = bits[suffix, form]
            if module in masks:
                masks[module] |= bit
            else:
                masks[module] = bit
        self.parts: list[Part] = [(suffix, *table.forms[form]) for suffix, form in bits]
        self.masks = masks
        self._split_fused()

    def _split_fused(self) -> None:
        """Give the projections of fused experts modules of their own, ``….experts.gate_up_proj``, as other experts have."""
        suffixes = [_FUSED.fullmatch(suffix) for suffix, _, _ in self.parts]
        fused = sum(1 << number for number, found in enumerate(suffixes) if found)
        for module in [module for module, mask in self.masks.items() if mask & fused and module.endswith("experts")]:
            for number, found in enumerate(suffixes):
                if found and self.masks[module] >> number & 1:
                    projection, suffix = found.groups()
                    part = (suffix or "weight", *self.parts[number][1:])
                    if part not in self.parts:
                        self.parts.append(part)
                    name = f"{module}.{projection}"
                    self.masks[name] = self.masks.get(name, 0) | 1 << self.parts.index(part)

    def tensors(self, module: str) -> list[Part]:
        """(suffix, dtype, shape) of each tensor of the module."""
        return self._of(self.masks[module])

    def _of(self, mask: int) -> list[Part]:
        return [part for number, part in enumerate(self.parts) if mask >> number & 1]

    @cached_property
    def algorithms(self) -> dict[str, str]:
        """module -> what it is, for every module with a weight of two or more dimensions; see ``classify``."""
        known = {mask: classify(self._of(mask)) for mask in set(self.masks.values())}
        return {module: algorithm for module, mask in self.masks.items() if (algorithm := known[mask])}

    @cached_property
    def blocks(self) -> dict[str, ExpertBlock]:
        """block (``….mlp.experts``) -> what its experts are."""
        numbers: dict[str, set[int]] = {}
        projections: dict[str, dict[str, None]] = {}
        counts: dict[str, Counter] = {}
        for module, algorithm in self.algorithms.items():
            head, dot, tail = module.partition(".experts.")
            if not dot:
                continue
            block = head + ".experts"
            number, _, projection = tail.partition(".")
            if number.isdecimal():
                numbers.setdefault(block, set()).add(int(number))
            else:
                projection = tail
            projections.setdefault(block, {})[projection] = None
            counts.setdefault(block, Counter())[algorithm] += 1
        return {block: self._block(block, numbers.get(block), tuple(projections[block]), dict(counts[block])) for block in counts}

    def _block(self, name: str, numbers: set[int] | None, projections: tuple[str, ...], algorithms: dict[str, int]) -> ExpertBlock:
        if numbers is None:
            experts = range(max(self.weight(f"{name}.{projection}")[1][0] for projection in projections))
            return ExpertBlock(name, True, tuple(experts), projections, algorithms)
        return ExpertBlock(name, False, tuple(sorted(numbers)), projections, algorithms)

    def weight(self, module: str) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape) of the module's weight."""
        return next((dtype, shape) for suffix, dtype, shape in self.tensors(module) if ROLES.get(suffix) == "weight")


class _Bits(dict):
    """(suffix, form) -> a bit of its own, so that what a module holds is one small number."""

    def __missing__(self, key: tuple[str, int]) -> int:
        self[key] = bit = 1 << len(self)
        return bit


def classify(parts: Iterable[Part]) -> str | None:
    """A module's algorithm from its tensors: "NVFP4" (W4A4), "W4A16_NVFP4", "FP8", "MXFP8", "MXFP4", "FP8_BLOCK_SCALES",
    "FP8_PER_CHANNEL_PER_TOKEN", "INT4", "INT8", the dtype of an unquantised weight ("BF16"), or "incomplete: …" when a format lacks
    a tensor. None for a module without a weight of two or more dimensions.
    """
    roles = {ROLES[suffix]: (dtype, shape) for suffix, dtype, shape in parts if suffix in ROLES}
    dtype, shape = roles.get("weight", ("", ()))
    if len(shape) < 2:
        return None
    if dtype in ("U8", "I8", "F4", "I32"):
        return _classify_packed(dtype, roles)
    if dtype in _FP8:
        return _classify_fp8(shape, roles)
    return dtype


def _classify_packed(dtype: str, roles: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    if dtype == "I32":
        return "INT4"
    if "scale" not in roles:
        return f"incomplete: {dtype} weight without weight_scale"
    scale = roles["scale"][0]
    if scale in ("U8", "F8_E8M0"):
        return "MXFP4"
    if scale not in _FP8:
        return "INT8" if dtype == "I8" else "INT4"
    if "global" not in roles:
        return "incomplete: NVFP4 weight and weight_scale without weight_scale_2"
    return "NVFP4" if "input" in roles else "W4A16_NVFP4"


def _classify_fp8(shape: tuple[int, ...], roles: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    if "scale" not in roles:
        return "incomplete: FP8 weight without weight_scale"
    dtype, scale = roles["scale"]
    if dtype in ("U8", "F8_E8M0") and scale[-1:] == (-(-shape[-1] // 32),) and scale[:-1] == shape[:-1]:
        return "MXFP8"
    if all(size == 1 for size in scale):
        return "FP8"
    if scale in ((shape[0],), (shape[0], 1)):
        return "FP8_PER_CHANNEL_PER_TOKEN"
    return "FP8_BLOCK_SCALES"
