"""Findings from holding a checkpoint's statements against each other: copy against copy, map against tensors, geometry against shapes."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from fnmatch import translate

from helpers.checkpoint.config_copies import CONFIG, QUANT
from helpers.checkpoint.geometry import ExpertGeometry
from helpers.checkpoint.layer_map import LayerMap, same_format
from helpers.checkpoint.names import layer_of, module_kind, printable, some
from helpers.checkpoint.tensor_modules import ExpertBlock, TensorModules
from helpers.findings import Finding

DOWN = ("down_proj", "w2")
GATED_UP = ("gate_up_proj", "w13")
GATE = ("gate_proj", "w1", *GATED_UP)

# Bytes that a weight of the format takes in memory, and so the shape that a server allocates for it.
FOUR_BITS = ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "MXFP4")
EIGHT_BITS = ("FP8", "MXFP8", "FP8_BLOCK_SCALES", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN")
# What a flat checkpoint's one algorithm certainly covers; the rest (routers, norms, vision towers) is unquantised by construction.
FLAT_COVERS = ("routed experts", "shared experts", "dense mlp", "attention", "linear attention", "lm_head")


def copies_disagree(maps: dict[str, LayerMap], copies_read: tuple[str, str, str]) -> list[Finding]:
    """maps: copy -> its map. copies_read: (copy that names the quantisation, copy that the layers are built from, why)."""
    differences = differing(maps[CONFIG], maps[QUANT]) if len(maps) == 2 else []
    if not differences:
        return []
    name_copy, layer_copy, why = copies_read
    return [
        Finding(
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
    ]


def differing(inline: LayerMap, file: LayerMap) -> list[str]:
    """What two copies say differently, one line a subject; empty when they agree."""
    found = []
    for subject, one, other in (
        ("algorithm", inline.quant_algo, file.quant_algo),
        ("group size", inline.group_size, file.group_size),
        ("KV cache", inline.kv_cache, file.kv_cache),
    ):
        if one != other and (subject != "group size" or None not in (one, other)):
            found.append(f"{subject}: {printable(str(one))} in {CONFIG}, {printable(str(other))} in {QUANT}")
    if inline.entries != file.entries:
        found += _entry_differences(inline, file)
    for copy, here, there in ((CONFIG, inline, file), (QUANT, file, inline)):
        only = set(here.excludes) - set(there.excludes)
        if only:
            found.append(f"excluded only in {copy}: {some(sorted(only))}")
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


def map_against_tensors(layer_map: LayerMap, modules: TensorModules, geometry: ExpertGeometry | None) -> list[Finding]:
    """Where the map says one algorithm for a module and its tensors are another's; one finding a pair of (said, is)."""
    layers = geometry.layers if geometry else None
    disagreements: dict[tuple[str, str, str], list[str]] = {}
    for module, actual in _units(layer_map, modules):
        kind = module_kind(module, layers)
        said = claim(layer_map, module, kind)
        if said is not None and not _agree(said, actual):
            disagreements.setdefault((said, actual, kind), []).append(module)
    return [_disagreement(layer_map, *key, names) for key, names in disagreements.items()]


def _units(layer_map: LayerMap, modules: TensorModules) -> Iterable[tuple[str, str]]:
    """(module, algorithm), with a block of experts as one module per algorithm unless the map speaks of single experts."""
    single = layer_map.key_style == "per expert"
    for module, algorithm in modules.algorithms.items():
        if single or ".experts." not in module:
            yield module, algorithm
    if not single:
        for block in modules.blocks.values():
            for algorithm in block.algorithms:
                yield block.name, algorithm


def claim(layer_map: LayerMap, module: str, kind: str) -> str | None:
    """What the map certainly says about a module: an algorithm, "unquantised", or None when it does not say.

    A native FP8 checkpoint's own linears are not in the map (quant_method "fp8"), and neither is what a flat one leaves unquantised by
    construction.
    """
    said = layer_map.algorithm(module)
    if layer_map.entries:
        return said or (None if layer_map.quant_method == "fp8" else "unquantised")
    if not said and not layer_map.excludes and not layer_map.quant_algo:
        return None
    if said and (kind not in FLAT_COVERS or said.upper() == "MIXED_PRECISION"):
        return None
    return said or ("unquantised" if layer_map.is_excluded(module) else None)


def _agree(said: str, actual: str) -> bool:
    if said == "unquantised":
        return actual not in (*FOUR_BITS, *EIGHT_BITS) and not actual.startswith("incomplete")
    return same_format(said.upper().removesuffix("_AWQ"), actual) or said.upper() not in (*FOUR_BITS, *EIGHT_BITS)


def _bits(algorithm: str) -> int:
    upper = algorithm.upper()
    return 4 if upper in FOUR_BITS else 8 if upper in EIGHT_BITS else 16


def _disagreement(layer_map: LayerMap, said: str, actual: str, kind: str, names: list[str]) -> Finding:
    severity, why = _consequence(layer_map, said, actual, kind)
    return Finding(
        id="load.tensors_differ_from_map",
        stage="load",
        severity=severity,
        read=f"{layer_map.copy} against the tensors of {some(names)}",
        observed=f"{len(names):,} {kind} with tensors of {actual}",
        expected=f"{printable(said)}, as {layer_map.copy} says",
        why=why,
        source="sglang 0.5.16 modelopt_quant.py: create_weights; parameter.py: load_column_parallel_weight",
        remedy=f"correct the entries in both {CONFIG} and {QUANT}, or export the checkpoint again",
    )


def _consequence(layer_map: LayerMap, said: str, actual: str, kind: str) -> tuple[str, str]:
    """(severity, why). Proven only where the map speaks of the module by name, or of experts and MLPs, which a flat one always covers."""
    certain = bool(layer_map.entries) or kind in ("routed experts", "shared experts", "dense mlp")
    if actual.startswith("incomplete"):
        return "wrong_output", "a scale that no tensor fills keeps whatever the memory held"
    if {said.upper(), actual} == {"NVFP4", "W4A16_NVFP4"}:
        if actual == "NVFP4":
            return "note", "the input scales are not used by a weight-only layer"
        return "abstained", "no input_scale: uninitialised memory up to 0.5.16, 1.0 from 0.5.17; the load stage decides for a release"
    if _bits(said) != _bits(actual) and 4 in (_bits(said), _bits(actual)):
        if certain:
            return (
                "fails_to_load",
                "a packed FP4 weight is half as wide as the parameter of any other format, so the copy fails on its shape",
            )
        return "abstained", "the shapes differ if the server builds this module as the map says, and the map does not name it"
    if _bits(said) != _bits(actual):
        return (
            "wrong_output" if certain else "abstained",
            "the weight has the parameter's shape and is cast to its dtype in silence, without its scales",
        )
    return "abstained", "the same width but other scales; the load stage decides for a release"


def names_that_match_nothing(layer_map: LayerMap, modules: TensorModules) -> list[Finding]:
    """Keys of the map and exclude patterns that no tensor of the checkpoint has anything to do with."""
    known = sorted(_with_parents(modules.masks))
    present = set(known)
    keys = [key for key in layer_map.entries if key not in present]
    patterns = [pattern for pattern in layer_map.excludes if not _matches_any(pattern, known, present)]
    findings = []
    for names, of, what, why in (
        (keys, len(layer_map.entries), "keys of quantized_layers", "a module that the map does not name is built unquantised"),
        (patterns, len(layer_map.excludes), "exclude patterns", "an exclude that matches nothing excludes nothing"),
    ):
        if names:
            sentinel = any("pt_name_sentinel" in name for name in names)
            findings.append(
                Finding(
                    id="detect.names_match_nothing",
                    stage="detect",
                    severity="note",
                    read=layer_map.copy,
                    observed=f"{len(names):,} of {of:,} {what} match no tensor: {some(names)}",
                    expected="names of modules that the checkpoint has",
                    why=why + (" (nvidia-modelopt 0.47 corrupts these names: a renaming rule eats its own sentinel)" if sentinel else ""),
                    source=f"{layer_map.copy}; tensor names in the safetensors headers",
                    remedy="remove everything from '.\\x00' on in these names, in both copies"
                    if sentinel
                    else "correct or remove these names",
                )
            )
    return findings


def _with_parents(modules: Iterable[str]) -> set[str]:
    """The modules and everything around them: ``a.b.c`` gives ``a.b.c``, ``a.b`` and ``a``."""
    known: set[str] = set()
    for module in modules:
        while module and module not in known:
            known.add(module)
            module = module.rpartition(".")[0]
    return known


def _matches_any(pattern: str, known: list[str], present: set[str]) -> bool:
    """Whether a pattern matches one of the names (known is sorted, present the same as a set)."""
    plain = pattern.removesuffix("*")
    if not set("*?[") & set(plain) and not pattern.startswith("re:"):
        if plain == pattern:
            return pattern in present
        place = bisect_left(known, plain)
        return place < len(known) and known[place].startswith(plain)
    expression = re.compile(pattern[3:] if pattern.startswith("re:") else translate(pattern))
    return any(map(expression.match, known))


def geometry_against_shapes(geometry: ExpertGeometry, modules: TensorModules, complete: bool) -> list[Finding]:
    """Where the experts' tensors have other sizes, numbers or layers than the configuration says."""
    absent: dict[str, str] = {}
    shapes: dict[str, dict[str, str]] = {}
    blocks = {layer_of(name): block for name, block in modules.blocks.items() if module_kind(name, geometry.layers) == "routed experts"}
    for block in blocks.values():
        if len(block.experts) != geometry.experts or block.experts[-1] != geometry.experts - 1:
            absent.setdefault("experts", f"{len(block.experts)} experts in {printable(block.name)}, {geometry.experts} in {CONFIG}")
        if geometry.gated and not set(GATE) & set(block.projections):
            absent.setdefault("gate", f"{printable(block.name)} has no gate projection, and {printable(geometry.activation)} is gated")
        for projection in block.projections:
            severity, observed = _projection_against(geometry, modules, block, projection)
            if severity:
                shapes.setdefault(severity, {}).setdefault(projection, observed)
    missing = sorted(set(geometry.moe_layers) - set(blocks)) if complete else []
    if missing:
        absent["layers"] = f"no experts in layers {some(map(str, missing))}"
    findings = [_differs("load.geometry_differs", severity, found, SHAPE_WHY[severity]) for severity, found in shapes.items()]
    if absent:
        findings.append(_differs("load.experts_missing", "wrong_output", absent, "a parameter that no tensor fills keeps what memory held"))
    return findings


SHAPE_WHY = {
    "fails_to_load": "the parameters are allocated by the configuration, and the copy fails on the shape",
    "wrong_output": "the loader cuts a wider tensor to the parameter's size and says nothing",
    "abstained": "a narrower tensor is padded by some runners and refused by the others; the load stage decides",
}


def _differs(rule: str, severity: str, found: dict[str, str], why: str) -> Finding:
    return Finding(
        id=rule,
        stage="load",
        severity=severity,
        read=f"{CONFIG} against the shapes of the experts' tensors",
        observed="; ".join(found.values()),
        expected="the sizes of the configuration",
        why=why,
        source="sglang 0.5.16 fused_moe_triton/layer.py: _load_w13, _load_w2",
        remedy=f"use the {CONFIG} that belongs to these tensors",
    )


def _projection_against(geometry: ExpertGeometry, modules: TensorModules, block: ExpertBlock, projection: str) -> tuple[str, str]:
    """(severity, what differs), ("", "") when the projection has the configuration's size. Compared in elements, one expert for all."""
    module = f"{block.name}.{projection}" if block.fused else f"{block.name}.{block.experts[0]}.{projection}".removesuffix(".")
    dtype, shape = modules.weight(module)
    packed = 2 if dtype in ("U8", "I8") else 1
    hidden, inner = geometry.expert_hidden, geometry.intermediate * (2 if projection in GATED_UP else 1)
    if block.fused:
        # [experts, in, out] or [experts, out, in] by the family, packed along "in": compared without the order.
        pair = tuple(sorted(shape[1:3]))
        same = pair in (tuple(sorted((hidden // packed, inner))), tuple(sorted((hidden, inner // packed))))
        return ("", "") if same else ("fails_to_load", f"{printable(module)} is {list(shape)}, {hidden} by {inner} in {CONFIG}")
    rows, columns = shape[0], shape[-1] * packed
    has_hidden, has_inner = (rows, columns) if projection in DOWN else (columns, rows)
    if (has_hidden, has_inner) == (hidden, inner):
        return "", ""
    observed = f"{projection} has hidden {has_hidden} and inner {has_inner} in {printable(block.name)}, {hidden} and {inner} in {CONFIG}"
    if has_hidden != hidden:
        return "fails_to_load", observed
    return ("wrong_output" if has_inner > inner else "abstained"), observed
