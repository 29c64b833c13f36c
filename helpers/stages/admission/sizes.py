"""Sizes: what SGLang fills in by GPU memory, and what data parallelism does to them."""

from helpers.stages.admission.resolution import Resolution

# Below this much memory (MiB): (chunked prefill size, largest decode graph with tp < 4, with tp >= 4). SGLang has smaller tiers
# for GPUs under 60 GiB; data/gpus.toml has none of those.
_TIERS = ((160 * 1024, 8192, 256, 512), (float("inf"), 16384, 512, 512))


def memory_rules(r: Resolution) -> None:
    """Defaults by GPU memory, which the token budgets read later. _handle_gpu_memory_settings."""
    _, chunk, small, large = next(tier for tier in _TIERS if r.gpu.memory_mib < tier[0])
    question = "how many tokens may one forward have?"
    if r.chunked_prefill_size is None:
        r.decide("memory", "chunked_prefill_size", chunk, question, "GPU memory", f"{r.gpu.memory_mib} MiB")
    if r.decode_graph_batch is None:
        r.decide(
            "memory", "decode_graph_batch", small if r.tp < 4 else large, question, "GPU memory, tp", f"{r.gpu.memory_mib} MiB, {r.tp}"
        )


def parallel_rules(r: Resolution) -> None:
    """Attention data parallelism: tp is split into dp groups, and a group gets its share of the chunk. handle_data_parallelism."""
    if r.attention_dp == 1:
        r.attention_dp_enabled = False
        return r.note("parallel", "is attention data parallel?", "--dp-size, --enable-dp-attention", f"{r.flags.dp}", "no")
    fits = r.tp % r.attention_dp == 0
    r.check("parallel.dp", fits, "", "does dp divide tp?", "--tp-size, --dp-size", f"{r.tp}, {r.attention_dp}")
    chunk = r.chunked_prefill_size // r.attention_dp
    return r.decide(
        "parallel",
        "chunked_prefill_size",
        chunk,
        "how many tokens for one dp group?",
        "chunk, dp",
        f"{r.chunked_prefill_size}, {r.attention_dp}",
    )
