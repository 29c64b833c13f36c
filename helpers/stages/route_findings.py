"""Findings that follow from a routing alone, whatever it is deployed on, and the names assumed for a model class not in the table."""

from collections import defaultdict
from collections.abc import Iterator

from helpers.checkpoint import Checkpoint
from helpers.deployment import RELEASES, Release
from helpers.errors import InputError
from helpers.findings import Finding
from helpers.stages.detect import Detection
from helpers.stages.modules import Module, family_of
from helpers.stages.names import LayerAlgorithms, Unloadable
from helpers.stages.quant_config import MODELOPT, Spec
from helpers.stages.stored import EXPECTED, declared_format, formats

WEIGHTS = "layers/moe/fused_moe_triton/layer.py and layers/linear.py: weight loaders"


def findings(checkpoint: Checkpoint, detection: Detection, routing, error: Unloadable | None) -> tuple[Finding, ...]:
    """Everything about the routing that holds on any deployment."""
    found: list[Finding] = []
    if error is not None:
        found.append(_unloadable(detection, routing.release, error))
    if not routing.known:
        found.append(_unknown_architecture(checkpoint, routing.release))
    spec = routing.spec
    if spec is None or spec.cls == "W4AFp8Config":
        return tuple(found)
    if spec.layers is not None:
        found += _blocks_that_disagree(routing)
        found += _partly_listed(routing)
        found += _keys_never_read(checkpoint, routing)
    return tuple(found + _misfits(checkpoint, detection, routing))


def _unloadable(detection: Detection, release: Release, error: Unloadable) -> Finding:
    return Finding(
        id="route.config_unloadable",
        stage="route",
        severity="fails_to_load",
        read=detection.copy,
        observed=f"{error.error}: {error.message}",
        expected="a quantisation config this release can build",
        why="SGLang raises while it builds the model's layers",
        source=f"sglang {release} {error.source}",
        remedy=_newer_or_export(detection, release),
        releases=(release.version,),
    )


def _newer_or_export(detection: Detection, release: Release) -> str:
    first = {"NVFP4_AWQ": "0.5.17", "W4A16_NVFP4": "0.5.19"}.get(detection.quant_algo or "")
    if first and not release.at_least(first):
        return f"use SGLang {first} or newer, which accepts a flat {detection.quant_algo} checkpoint"
    return "export again with ModelOpt's own exporter, which writes quant_algo, group_size, excludes and the map as they are read here"


def _unknown_architecture(checkpoint: Checkpoint, release: Release) -> Finding:
    family = family_of(checkpoint)
    first = family.architectures[checkpoint.architecture] if family else None
    return Finding(
        id="route.model_class_unknown",
        stage="route",
        severity="abstained",
        read="config.json: architectures",
        observed=checkpoint.architecture or "none",
        expected="a model class whose module names are in this suite's table",
        why="without it, module names are assumed to be the checkpoint's own"
        if first is None
        else f"SGLang {release} has no such model class and falls back to its generic Transformers classes",
        source="helpers/stages/modules.py" if first is None else f"sglang {release} model_loader/utils.py: get_model_architecture",
        remedy="" if first is None else f"use SGLang {first} or newer",
        releases=(release.version,),
    )


# --- the map ----------------------------------------------------------------------------------------------------------


def _blocks_that_disagree(routing) -> list[Finding]:
    """Experts of one block with several algorithms: the first key of the map decides for all of them."""
    found = []
    for module in routing.modules:
        if module.kind != "experts" or module.how != "child" or module.excluded_by is not None:
            continue
        block = module.matched.partition(".experts.")[0] + ".experts"
        others = {name: key for name, key in routing.spec.layers.blocks.get(block, {}).items() if name != module.algo}
        if others:
            found.append((module, others))
    if not found:
        return []
    module, others = found[0]
    kinds = {declared_format(name) for _, names in found for name in names}
    fits = kinds <= {declared_format(module.algo)}
    name, key = next(iter(others.items()))
    return [
        Finding(
            id="route.expert_block_disagrees",
            stage="route",
            severity="wrong_output" if fits else "fails_to_load",
            read=f"quantized_layers: {module.matched} and {key}",
            observed=f"{module.algo} first, {name} elsewhere in the same block; {len(found)} such blocks",
            expected="one algorithm for all experts of a block",
            why="SGLang builds a block as one module and takes the first matching key of the map for all of it; nothing compares the rest",
            source=f"sglang {routing.release} {MODELOPT}: _resolve_quant_algo",
            remedy="quantise all experts of a layer with one algorithm and export again",
            releases=(routing.release.version,),
        )
    ]


def _partly_listed(routing) -> list[Finding]:
    """A fused module of which only some parts are in the map: SGLang quantises all of it, the missing parts' weights do not fit."""
    found = []
    for module in routing.modules:
        if module.how != "packed":
            continue
        last = module.prefix.rsplit(".", 1)[-1]
        listed = {key.rsplit(".", 1)[-1] for _, key in module.candidates if key is not None}
        missing = [part for part in routing.spec.packed[last] if part not in listed]
        if missing:
            found.append((module, missing))
    if not found:
        return []
    module, missing = found[0]
    packed = declared_format(module.algo) in ("NVFP4", "packed")
    return [
        Finding(
            id="route.packed_partly_listed",
            stage="route",
            severity="fails_to_load" if packed else "wrong_output",
            read=f"quantized_layers: {module.matched}",
            observed=f"{', '.join(missing)} of {module.prefix} not in the map; {len(found)} such modules",
            expected=f"all parts of {module.prefix.rsplit('.', 1)[-1]}, or none",
            why="one listed part decides for the whole fused module; the others' weights then meet parameters of another format",
            source=f"sglang {routing.release} {MODELOPT}: _resolve_quant_algo",
            remedy="list every part of a fused projection with the same algorithm, or none of them",
            releases=(routing.release.version,),
        )
    ]


def _keys_never_read(checkpoint: Checkpoint, routing) -> list[Finding]:
    """Map keys that no module of the model asks for. A note: whether they do harm shows in what their modules became."""
    if not routing.known or routing.error:
        return []
    read = set()
    for module in routing.modules:
        for name, key in module.candidates:
            if key is not None:
                read.add(name.removesuffix("."))
    unread = [key for key in routing.spec.layers.layers if not _is_under(key, read)]
    if not unread:
        return []
    drafts = [key for key in unread if key.startswith("mtp.")]
    return [
        Finding(
            id="route.map_keys_never_read",
            stage="route",
            severity="note",
            read=f"quantized_layers: {unread[0]}",
            observed=f"{len(unread)} of {len(routing.spec.layers.layers)} keys, {len(drafts)} of them of the draft model (mtp.)",
            expected="every key names a module of the running model",
            why="a key that no module asks for is ignored without a message",
            source=f"sglang {routing.release} {MODELOPT}: _quantized_layer_prefix_candidates",
            remedy="",
            releases=(routing.release.version,),
        )
    ]


def _is_under(key: str, names: set[str]) -> bool:
    if key in names:
        return True
    dot = key.rfind(".")
    while dot > 0:
        if key[:dot] in names:
            return True
        dot = key.rfind(".", 0, dot)
    return False


# --- what is stored against what was built ----------------------------------------------------------------------------


def _misfits(checkpoint: Checkpoint, detection: Detection, routing) -> list[Finding]:
    """Modules whose method expects another format than the checkpoint stores, one finding for each cause."""
    declared = None
    if checkpoint.tensors is None:
        layers = routing.spec.section.get("quantized_layers") or (routing.spec.section.get("quantization") or {}).get("quantized_layers")
        if not isinstance(layers, dict):
            return []
        declared = LayerAlgorithms(layers)
    groups = defaultdict(list)
    for module in routing.modules:
        expected = EXPECTED.get(module.method)
        if expected is None:
            continue
        if declared is not None and module.matched is not None and module.excluded_by is None and module.method not in _LEFT_ALONE:
            continue  # its algorithm came from this very map
        for stored, example in formats(checkpoint, declared, module.kind, module.sources).items():
            if stored not in (expected, "other"):
                groups[_cause(module), stored, expected, module.kind == "experts"].append((module, example))
    return [_misfit(checkpoint, routing, *key, members) for key, members in groups.items()]


_LEFT_ALONE = ("UnquantizedLinearMethod", "UnquantizedFusedMoEMethod")


def _cause(module) -> str:
    if module.excluded_by is not None:
        return "excluded"
    if module.unless == "unquantised":
        return "by_class"
    if module.method in _LEFT_ALONE:
        return "unsupported" if module.matched is not None else "unresolved"
    return "format"


# cause -> (id, what is expected, why, remedy, public reference)
_CAUSES = {
    "excluded": (
        "route.excluded_though_quantized",
        "quantised modules are not excluded",
        "an exclude pattern is tried on the whole name and on each dotted part, so it can reach further than it was meant to",
        "make the pattern name the whole module, for example model.layers.3.self_attn* instead of 3 or model.layers.1*",
        "",
    ),
    "by_class": (
        "route.class_keeps_unquantized",
        "a module that the model class leaves unquantised is stored unquantised",
        "the model class passes no quantisation config to this module",
        "export with these modules excluded, or use a release whose class passes the config on (Qwen3.5: 0.5.17)",
        "",
    ),
    "unsupported": (
        "route.algorithm_without_method",
        "an algorithm that this release has a method for",
        "this release knows no method for the algorithm, so the module is built unquantised",
        "use a release that has it: MXFP8 from 0.5.17, FP8_PB_WO linear from 0.5.18 and experts from 0.5.21, FP8_BLOCK_SCALES from 0.5.20",
        "https://github.com/sgl-project/sglang/issues/38726",
    ),
    "unresolved": (
        "route.name_not_found",
        "the module's runtime name, or one of those tried for it, is in the map",
        "no name that SGLang tries is in the map, so the module is built unquantised",
        "use a release whose model class maps these names, or rename the keys in both JSON copies",
        "https://github.com/sgl-project/sglang/issues/31827",
    ),
    "format": (
        "route.stored_otherwise",
        "tensors in the format of the method",
        "the checkpoint says one format and stores another",
        "export again, or correct the map in both JSON copies to what the tensors are",
        "",
    ),
}


def _misfit(checkpoint: Checkpoint, routing, cause: str, stored: str, expected: str, experts: bool, members: list) -> Finding:
    module, example = members[0]
    identifier, wanted, why, remedy, reference = _CAUSES[cause]
    by_pattern = f" ({module.excluded_by!r} matches its part {module.excluded_part!r})" if cause == "excluded" else ""
    shapes = {stored, expected} & {"NVFP4", "packed"}
    effect = (
        "the packed tensor has half the columns: the load stops on its shape"
        if shapes
        else "the values are converted without their scales: the server answers, wrongly"
    )
    return Finding(
        id=identifier,
        stage="route",
        severity="fails_to_load" if shapes else "wrong_output",
        read=example,
        observed=f"{stored} weights for {module.prefix}, built as {module.method}{by_pattern}; {len(members)} such modules",
        expected=wanted,
        why=f"{why}; {effect}",
        source=f"sglang {routing.release} {module.source}; {WEIGHTS}",
        remedy=remedy,
        reference=reference,
        releases=_releases(checkpoint, routing, cause, module),
    )


def _releases(checkpoint: Checkpoint, routing, cause: str, module) -> tuple[str, ...]:
    """All releases a cause holds for, where that is known from the names alone; else the one that was asked."""
    if cause == "by_class" and checkpoint.architecture.startswith("Qwen3_5"):
        return tuple(known.version for known in RELEASES if not known.at_least("0.5.17"))
    return (routing.release.version,)


# --- a model class that is not in the table ---------------------------------------------------------------------------


def assumed_modules(checkpoint: Checkpoint, spec: Spec | None) -> Iterator[Module]:
    """The checkpoint's own names as module names: the map's keys, expert blocks as one module, else the layers' experts."""
    seen = set()
    for key in spec.layers.layers if spec is not None and spec.layers is not None else ():
        head, found, _ = key.partition(".experts.")
        prefix = head + ".experts" if found else key
        if prefix not in seen:
            seen.add(prefix)
            yield Module(prefix, "experts" if prefix.endswith(".experts") else "linear", None, (prefix,))
    if seen:
        return
    try:
        geometry = checkpoint.geometry
    except InputError:
        return  # load.geometry_unknown says so
    if geometry is not None:
        for layer in geometry.moe_layers:
            prefix = f"model.layers.{layer}.{geometry.block}"
            yield Module(prefix, "experts", layer, (prefix,))
