"""Findings from holding a checkpoint's statements against each other: copy against copy, map against tensors, geometry against shapes."""

from typing import TYPE_CHECKING

from helpers.checkpoint.config_copies import CONFIG, QUANT
from helpers.checkpoint.layer_map import LayerMap, same_format
from helpers.findings import Finding

if TYPE_CHECKING:
    from helpers.checkpoint.checkpoint import Checkpoint

SHOWN = 4  # examples in one finding


def compare(checkpoint: "Checkpoint") -> tuple[Finding, ...]:
    return tuple(finding for finding in (copies_disagree(checkpoint),) if finding)


def copies_disagree(checkpoint: "Checkpoint") -> Finding | None:
    maps = checkpoint.layer_maps
    if len(maps) < 2:
        return None
    differences = differing(maps[CONFIG], maps[QUANT])
    if not differences:
        return None
    name_copy, layer_copy, why = checkpoint.copies_read
    return Finding(
        id="detect.copies_disagree",
        stage="detect",
        severity="note",
        read=f"{CONFIG}: quantization_config; {QUANT}",
        observed="; ".join(differences),
        expected="two copies that say the same",
        why=f"SGLang names the quantisation from {name_copy} and builds the layers from {layer_copy}: {why}",
        source="sglang 0.5.16 model_config.py: _parse_quant_hf_config; weight_utils.py: get_quant_config",
        remedy="make the copy that is not read say the same as the one that is",
    )


def differing(inline: LayerMap, file: LayerMap) -> list[str]:
    """What two copies say differently, one line a subject; empty when they agree."""
    found = []
    for subject, one, other in (
        ("algorithm", inline.quant_algo, file.quant_algo),
        ("group size", inline.group_size, file.group_size),
        ("KV cache", inline.kv_cache, file.kv_cache),
    ):
        if one != other and (subject != "group size" or None not in (one, other)):
            found.append(f"{subject}: {one} in {CONFIG}, {other} in {QUANT}")
    if inline.entries != file.entries:
        found += _entry_differences(inline, file)
    only_inline, only_file = set(inline.excludes) - set(file.excludes), set(file.excludes) - set(inline.excludes)
    for copy, names in ((CONFIG, only_inline), (QUANT, only_file)):
        if names:
            found.append(f"excluded only in {copy}: {some(sorted(names))}")
    return found


def _entry_differences(inline: LayerMap, file: LayerMap) -> list[str]:
    found = []
    for copy, here, there in ((CONFIG, inline.entries, file.entries), (QUANT, file.entries, inline.entries)):
        only = [name for name in here if name not in there]
        if only:
            found.append(f"in the map of {copy} only: {some(only)}")
    other = [name for name, algorithm in inline.entries.items() if name in file.entries and file.entries[name] != algorithm]
    if other:
        pairs = [f"{name} is {inline.entries[name]} in {CONFIG} and {file.entries[name]} in {QUANT}" for name in other]
        spelling = " (two spellings of one format)" if all(same_format(inline.entries[n], file.entries[n]) for n in other) else ""
        found.append(f"algorithm of {some(pairs)}{spelling}")
    return found


def some(names: list[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
