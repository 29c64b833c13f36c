"""How SGLang finds a compressed-tensors scheme for a module: config groups, their targets, and the ignore list.

Sources: layers/quantization/compressed_tensors/compressed_tensors.py (get_scheme_dict, get_moe_scheme,
_add_fused_moe_to_target_scheme_map) and utils.py beside it (should_ignore_layer, find_matched_target).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from helpers.deployment import Release
from helpers.stages.names import Unloadable

_HERE = "layers/quantization/compressed_tensors/compressed_tensors.py"
# The class a module has, of which a target such as "Linear" may be a part. lm_head and attention are never asked.
_CLASS = {"linear": "ColumnParallelLinear", "experts": "FusedMoE"}


def algorithm_of(
    section: Mapping, ignore: Sequence[str], prefix: str, kind: str, packed: Mapping[str, Sequence[str]], release: Release
) -> tuple[str | None, str | None]:
    """(algorithm, target it was found by) of a linear module or an expert block; (None, pattern) when it is ignored.

    Unloadable when no target fits, or when the parts of one module are treated differently.
    """
    targets = {target: group for group in (section.get("config_groups") or {}).values() for target in group.get("targets") or ()}
    ignored = partial(_ignored_by, ignore, packed=packed, release=release)
    if kind == "experts":
        if "Linear" in targets:
            targets.setdefault("FusedMoE", targets["Linear"])
        found = [_scheme(targets, ignored, f"{prefix}.0.{part}", kind, packed) for part in ("gate_proj", "up_proj", "down_proj")]
        if any(group is not found[0][0] for group, _ in found):
            message = "All MoE projections need to have same quantization scheme but found multiple"
            raise Unloadable("ValueError", message, f"{_HERE}: get_moe_scheme")
        group, matched = found[0]
    else:
        group, matched = _scheme(targets, ignored, prefix, kind, packed)
    return (None if group is None else _algorithm(group)), matched


def _scheme(targets, ignored, name, kind, packed) -> tuple[Mapping | None, str | None]:
    pattern = ignored(name)
    if pattern is not None:
        return None, pattern
    if not targets:
        return None, None
    target = _first(name, targets) or _first(_CLASS[kind], targets, contains=True) or _fused(name, targets, packed)
    if target is None:
        raise Unloadable(
            "ValueError", f"Unable to find matching target for {name} in the compressed-tensors config.", f"{_HERE}: find_matched_target"
        )
    return targets[target], target


def _ignored_by(ignore: Sequence[str], name: str, packed: Mapping[str, Sequence[str]], release: Release) -> str | None:
    last = name.rsplit(".", 1)[-1]
    if last in packed and name not in ignore:
        found = [_first(name.replace(last, part), ignore, contains=True) for part in packed[last]]
        if any(found) and not all(found):
            what, who = ("different", "SGLang") if release.at_least("0.5.16") else ("a different", "vLLM")
            message = f"Found {what} quantization schemes for {list(packed[last])} in {name}. {who} requires all to use the same scheme."
            raise Unloadable("ValueError", message, f"{_HERE}: should_ignore_layer")
        return found[0]
    return _first(name, ignore, contains=True)


def _first(value: str, targets: Iterable[str], *, contains: bool = False) -> str | None:
    for target in targets:
        if target.startswith("re:"):
            if re.match(target[3:], value):
                return target
        elif target.lower() in value.lower() if contains else target == value:
            return target
    return None


def _fused(name: str, targets: Mapping, packed: Mapping[str, Sequence[str]]) -> str | None:
    whole = next((fused for fused in packed if name.endswith(fused)), None)
    if whole is None:
        return None
    found = [_first(name.replace(whole, part), targets) for part in packed[whole]]
    return found[0] if all(found) else None


def _algorithm(group: Mapping) -> str:
    """The scheme of a group in the words of this suite. compressed_tensors.py: _is_fp4a4_nvfp4, _is_fp8_w8a8 and their like."""
    weights = group.get("weights") or {}
    activations = group.get("input_activations")
    bits, floating = weights.get("num_bits"), weights.get("type") == "float"
    if bits == 4 and floating:
        return "NVFP4" if activations else "W4A16_NVFP4"
    if bits == 8 and floating:
        return "FP8" if weights.get("strategy") != "block" else "FP8_BLOCK"
    return f"{'FLOAT' if floating else 'INT'}{bits}"
