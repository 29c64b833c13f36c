"""A checkpoint in plain rows (lists of dicts), for tables: what it says about itself, its tensors by dtype, its modules by algorithm."""

from collections import Counter

from helpers.checkpoint.checkpoint import Checkpoint
from helpers.checkpoint.compare import claim
from helpers.checkpoint.names import KINDS, module_kind


def fact_rows(checkpoint: Checkpoint) -> list[dict[str, str]]:
    """what, value: the statements of the configurations, and which copy SGLang reads them from."""
    layer_map, geometry = checkpoint.layer_map, checkpoint.geometry
    name_copy, layer_copy, why = checkpoint.copies_read
    facts: dict[str, object] = {
        "checkpoint": checkpoint.name,
        "source": checkpoint.source,
        "architecture": checkpoint.architecture or "none given",
        "copies": " and ".join(checkpoint.layer_maps) or "none",
        "names the quantisation": name_copy,
        "builds the layers": f"{layer_copy}: {why}",
        "algorithm": layer_map.quant_algo or layer_map.quant_method or "none",
        "map": f"{len(layer_map.entries):,} keys, {layer_map.key_style}" if layer_map.entries else "none: one algorithm for all",
        "excludes": f"{len(layer_map.excludes):,} patterns",
        "layer names begin": layer_map.prefix_family or "not named",
        "group size": layer_map.group_size or "not given",
        "KV cache": layer_map.kv_cache or "not quantised",
        "tensors": "configurations only" if checkpoint.tensors is None else f"{len(checkpoint.tensors):,}",
    }
    if geometry is not None:
        facts |= {
            "decoder layers": f"{geometry.layers}, {len(geometry.moe_layers)} of them with routed experts",
            "routed experts": f"{geometry.experts}, {geometry.top_k} a token",
            "one expert": f"{'gated' if geometry.gated else 'not gated'}, {geometry.expert_hidden} wide, {geometry.intermediate} inside",
            "shared experts": f"{geometry.shared_experts}, {geometry.shared_intermediate} wide together"
            if geometry.shared_experts
            else "none",
        }
    return [{"what": what, "value": str(value)} for what, value in facts.items()]


def tensor_rows(checkpoint: Checkpoint) -> list[dict[str, str | int]]:
    """dtype, tensors, bytes; largest first. Empty for configurations only."""
    table = checkpoint.tensors
    if table is None:
        return []
    numbers = Counter(table.forms[form][0] for form in table.form)
    sizes = table.bytes_by_dtype()
    return [
        {"dtype": dtype, "tensors": numbers[dtype], "bytes": sizes[dtype]} for dtype in sorted(sizes, key=sizes.__getitem__, reverse=True)
    ]


def module_rows(checkpoint: Checkpoint) -> list[dict[str, str | int]]:
    """kind, by_map, by_tensors, modules: how many modules (a block of experts counts once an algorithm) the map and the tensors agree on.

    by_tensors is "not examined" for configurations only, whose rows are the map's own keys.
    """
    layer_map, layers = checkpoint.layer_map, checkpoint.geometry.layers if checkpoint.geometry else None
    rows: Counter = Counter()
    if checkpoint.modules is None:
        for module, algorithms in layer_map.blocks.items():
            for algorithm in algorithms:
                rows[module_kind(module, layers), algorithm, "not examined"] += 1
    else:
        blocks = {block.name: block.algorithms for block in checkpoint.modules.blocks.values()}
        single = {name: (algorithm,) for name, algorithm in checkpoint.modules.algorithms.items() if ".experts." not in name}
        for module, algorithms in {**single, **blocks}.items():
            kind = module_kind(module, layers)
            said = claim(layer_map, module, kind) or "not said"
            for algorithm in algorithms:
                rows[kind, said, algorithm] += 1
    ordered = sorted(rows, key=lambda row: (KINDS.index(row[0]), *row[1:]))
    return [{"kind": kind, "by_map": said, "by_tensors": actual, "modules": rows[kind, said, actual]} for kind, said, actual in ordered]
