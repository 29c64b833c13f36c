"""Token budgets: does the largest forward fit the buffers of the all-to-all?"""

from helpers.stages.admission.resolution import Resolution

_VARIABLE = "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


# Under megamoe these architectures have no other path, so their tokens must fit (0.5.21).
_NO_FALLBACK = (
    "DeepseekV4ForCausalLM",
    "InternS2PreviewForConditionalGeneration",
    "MellumForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)


def early_budget_rules(r: Resolution) -> None:
    """0.5.17 to 0.5.20: DeepSeek-V4 over megamoe is checked with the rules of the architecture, before attention is split."""
    in_time = r.release.at_least("0.5.17") and not r.release.at_least("0.5.21")
    if not in_time or r.facts.architecture != "DeepseekV4ForCausalLM":
        return
    by_variable = not r.release.at_least("0.5.18") and r.switch("SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE")
    if r.a2a == "megamoe" or by_variable:
        _megamoe_prefill(r, "megamoe_v4_budget", "DeepSeekV4", " Otherwise MegaMoE falls back to the fused MoE path at runtime.")


def budget_rules(r: Resolution) -> None:
    """After everything else is resolved, because the number of draft tokens counts."""
    if r.a2a == "flashinfer" and r.release.at_least("0.5.22"):
        _flashinfer(r)
    elif r.a2a == "flashinfer" and r.release.at_least("0.5.13") and r.runner == "flashinfer_cutedsl":
        _cutedsl(r)
    elif r.a2a == "megamoe" and r.release.at_least("0.5.21"):
        _megamoe(r)
    elif r.a2a == "deepep_v2":
        _deepep_v2(r)


def _cutedsl(r: Resolution) -> None:
    """0.5.13 to 0.5.21. The prefill bound is --max-prefill-tokens, not the chunk."""
    if r.max_prefill_tokens <= 0:
        return
    required = max(r.max_prefill_tokens, r.decode_graph_batch * r.draft_tokens)
    each = r.number(_VARIABLE, 1024) or 1024
    capacity = each * r.ep
    question, read = "does the largest forward fit FlashInfer's buffers?", f"--max-prefill-tokens, {_VARIABLE}, ep"
    if capacity < required:
        message = (
            f"FlashInfer MoE A2A with flashinfer_cutedsl requires {_VARIABLE} * ep_size to cover the largest CuteDSL MoE forward "
            f"({required} tokens). Otherwise the FlashInfer dispatcher can crash at runtime with `ValueError: num_tokens (...) "
            f"exceeds max_num_tokens (...)`. Current values: {_VARIABLE}={each}, ep_size={r.ep}, capacity={capacity}, "
            f"required={required}. Set `export {_VARIABLE}={-(-required // r.ep)}` or lower the relevant limit "
            f"(e.g. --max-prefill-tokens) to <= {capacity}."
        )
        r.refuse("cutedsl_budget", "ValueError", message, question, read, f"{required} > {each} x {r.ep}")
    r.note("cutedsl_budget", question, read, f"{required} <= {each} x {r.ep}", "yes")


def _decode_graph(r: Resolution) -> tuple[int, int]:
    """(requests, tokens of each) in the largest decode graph on one rank."""
    requests = r.decode_graph_batch
    if r.max_running_requests is not None:
        requests = min(requests, max(1, r.max_running_requests // r.attention_dp))
    return requests, r.draft_tokens


def _flashinfer(r: Resolution) -> None:
    """From 0.5.22, for every runner. The workspace grows with the chunk unless the variable fixes it."""
    rule, question = "flashinfer_budget", "does the largest forward fit FlashInfer's buffers?"
    if r.chunked_prefill_size <= 0:
        message = (
            "FlashInfer MoE A2A requires chunked prefill: eager prefill dispatches the whole per-rank extend batch through a "
            "fixed-size workspace, so --chunked-prefill-size must be > 0."
        )
        r.refuse(rule, "ValueError", message, question, "--chunked-prefill-size", r.chunked_prefill_size)
    requests, tokens = _decode_graph(r)
    required = max(r.chunked_prefill_size, requests * tokens)
    configured = r.number(_VARIABLE, None)
    capacity = max(r.chunked_prefill_size, 4096) if configured is None else configured
    if required > capacity:
        message = (
            f"FlashInfer MoE A2A per-rank token budget exceeds its workspace: required={required} tokens per rank (prefill chunk, "
            f"prefill graph, or decode/verify graph), capacity={capacity}. Set {_VARIABLE}>={required}, or unset it to size from "
            "--chunked-prefill-size, or lower --chunked-prefill-size / the CUDA graph max batch sizes."
        )
        r.refuse(rule, "ValueError", message, question, f"chunk, decode graph, {_VARIABLE}", f"{required} > {capacity}")
    r.note(rule, question, f"chunk, decode graph, {_VARIABLE}", f"{required} <= {capacity}", "yes")


_MEGAMOE_VARIABLE = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"


def _megamoe(r: Resolution) -> None:
    """From 0.5.21: NVFP4 experts, and the architectures without another path. The decode graph first, then the prefill chunk."""
    algorithm = str(r.facts.file_quantization.get("quant_algo", ""))
    nvfp4 = ("modelopt_fp4", "minimax_m3_nvfp4") if r.release.at_least("0.5.23") else ("modelopt_fp4",)
    if r.facts.architecture not in _NO_FALLBACK and r.quantization not in nvfp4 and "FP4" not in algorithm:
        return
    requests = r.decode_graph_batch
    if r.release.at_least("0.5.23") and r.max_running_requests is not None:
        group = r.tp // r.attention_dp
        requests = min(requests, -(-(r.max_running_requests // r.attention_dp) // group) * group)
    decode, room = requests * r.draft_tokens, r.number(_MEGAMOE_VARIABLE, 8192)
    if room < decode:
        bucket, lower = (
            ("largest decode graph bucket", "--cuda-graph-max-bs / --max-running-requests / --speculative-num-draft-tokens.")
            if r.release.at_least("0.5.23")
            else ("decode cuda graph max bs", "--cuda-graph-max-bs / --speculative-num-draft-tokens.")
        )
        message = (
            f"{r.facts.architecture} with MegaMoE requires {_MEGAMOE_VARIABLE} to cover the largest decode / verify forward on one "
            f"rank. Current values: {bucket} x tokens per request = {decode}, {_MEGAMOE_VARIABLE}={room}. Raise the env var to at "
            f"least {decode} or lower {lower}"
        )
        question = "does the largest decode graph fit megamoe's buffer?"
        r.refuse("megamoe_budget", "ValueError", message, question, f"decode graph, {_MEGAMOE_VARIABLE}", f"{decode} > {room}")
    _megamoe_prefill(r, "megamoe_budget", r.facts.architecture, "")


def _megamoe_prefill(r: Resolution, rule: str, model: str, otherwise: str) -> None:
    """Each rank's share of a prefill chunk, rounded up to whole attention groups, must fit."""
    question, read = "does a prefill chunk fit megamoe's buffer?", f"chunk, dp, {_MEGAMOE_VARIABLE}"
    chunk = r.chunked_prefill_size
    if chunk <= 0:
        message = (
            f"{model} with MegaMoE requires chunked prefill to be enabled. Set --chunked-prefill-size to a positive value; "
            "--chunked-prefill-size=-1 is unsafe because MegaMoE's per-rank token requirement would not have a strict "
            "prefill-forward bound."
        )
        r.refuse(rule, "ValueError", message, question, "--chunked-prefill-size", chunk)
    parts, name = 1, "none"
    if r.attention_dp_enabled:
        parts, name = r.attention_dp, "attn_dp_size" if r.release.at_least("0.5.22") else "dp_size"
    local, alignment = chunk // parts, max(r.tp // parts, 1)
    values = f"chunked_prefill_size={chunk}, token_partition={name}, token_partition_size={parts}"
    if local <= 0:
        message = f"{model} with MegaMoE requires a positive effective per-rank chunked prefill size. Current values: {values}."
        r.refuse(rule, "ValueError", message, question, read, local)
    required = -(-local // alignment) * alignment
    room = r.number(_MEGAMOE_VARIABLE, 8192 if r.release.at_least("0.5.18") else 1024)
    if room < required:
        message = (
            f"{model} with MegaMoE requires {_MEGAMOE_VARIABLE} to cover each rank's effective prefill token budget. Current values: "
            f"{values}, token_alignment={alignment}, required_per_rank={required}, {_MEGAMOE_VARIABLE}={room}. Set "
            f"{_MEGAMOE_VARIABLE} to at least {required}, or lower --chunked-prefill-size until the effective per-rank budget fits."
            f"{otherwise}"
        )
        r.refuse(rule, "ValueError", message, question, read, f"{required} > {room}")
    r.note(rule, question, read, f"{required} <= {room}", "yes")


def _deepep_v2(r: Resolution) -> None:
    """From 0.5.19. From 0.5.22 a chunk is spread over the ranks of its attention group first."""
    rule, variable = "deepep_v2_budget", "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    room = r.number(variable, 128)
    prefill = max(r.chunked_prefill_size, 0) or r.max_prefill_tokens
    if r.release.at_least("0.5.22"):
        prefill = -(-prefill // max(1, r.tp // r.attention_dp))
    question = "does the largest forward fit DeepEP v2's buffer?"
    if prefill > room:
        message = (
            f"DeepEP v2 per-rank prefill budget exceeds {variable}: required={prefill}, capacity={room}. Raise the environment value "
            "or lower --chunked-prefill-size/--max-prefill-tokens."
        )
        r.refuse(rule, "ValueError", message, question, f"chunk, {variable}", f"{prefill} > {room}")
    requests, tokens = _decode_graph(r)
    if requests * tokens > room:
        flag = "--cuda-graph-max-bs-decode" if r.release.at_least("0.5.20") else "--cuda-graph-max-bs"
        message = (
            f"DeepEP v2 per-rank decode CUDA graph exceeds {variable}: required={requests * tokens}, capacity={room} "
            f"(requests={requests}, tokens/request={tokens}). Raise the environment value or lower {flag}."
        )
        r.refuse(rule, "ValueError", message, question, f"decode graph, {variable}", f"{requests * tokens} > {room}")
    r.note(rule, question, f"chunk, decode graph, {variable}", f"{prefill}, {requests * tokens} <= {room}", "yes")
