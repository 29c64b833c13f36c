"""Speculative decoding: the rules of it that do not need the draft model.

arg_groups/speculative_hook.py has many more; judge() says that they were not examined.
"""

from helpers.stages.admission.resolution import Resolution


def deepseek_v4_speculation(r: Resolution) -> None:
    """DeepSeek V4 drafts with EAGLE along one path; DSPARK too from 0.5.16. The name as given: NEXTN is not yet EAGLE here."""
    algorithm = r.flags.speculative_algorithm
    if not algorithm:
        return
    question, model = "can this model draft that way?", r.facts.architecture
    known, message = ("EAGLE",), f"Only EAGLE speculative algorithm is supported for {model}"
    if r.release.at_least("0.5.16"):
        known, message = ("EAGLE", "DSPARK"), f"Only EAGLE and DSPARK speculative algorithms are supported for {model}"
    r.check("deepseek_v4_speculation.algorithm", algorithm in known, message, question, "--speculative-algorithm", algorithm)
    if algorithm == "EAGLE":
        message = f"Only EAGLE speculative algorithm with topk == 1 is supported for {model}"
        paths = r.flags.speculative_eagle_topk
        r.check("deepseek_v4_speculation.paths", paths == 1, message, question, "--speculative-eagle-topk", paths)


_EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_BRANCHING = ("flashinfer", "fa3", "triton")


def speculative_rules(r: Resolution) -> None:
    """In SGLang's order. Two ways to draft know nothing of attention data parallelism; several paths need pages of one token."""
    algorithm = r.flags.speculative_algorithm
    if algorithm in _EAGLE:
        _eagle(r)
    elif algorithm == "NGRAM":
        _ngram(r)


# Models that keep a state beside their KV cache.
_LINEAR = ("NemotronHForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")


def radix_cache_rules(r: Resolution) -> None:
    """Up to 0.5.13 the default scheduler cannot keep such a state and draft; asked with the architecture's own rules, before runners.

    _handle_mamba_radix_cache.
    """
    if not r.flags.speculative_algorithm or r.facts.architecture not in _LINEAR or r.release.at_least("0.5.14"):
        return
    message = (
        f"Speculative decoding for {r.facts.architecture} is not compatible with radix cache when using --mamba-scheduler-strategy "
        "no_buffer.To use radix cache with speculative decoding, please use --mamba-scheduler-strategy extra_buffer and set "
        "SGLANG_ENABLE_SPEC_V2=1."
    )
    question, read = "can this model draft and keep a radix cache?", "config.json: architectures"
    r.refuse("radix_cache", "ValueError", message, question, read, r.facts.architecture)


def _refuse_attention_dp(r: Resolution, rule: str) -> None:
    if r.attention_dp_enabled:
        algorithm = r.flags.speculative_algorithm
        message = f"Currently {algorithm.lower()} speculative decoding does not support dp attention."
        r.refuse(rule, "ValueError", message, "can it draft with attention data parallelism?", "--speculative-algorithm", algorithm)


def _eagle(r: Resolution) -> None:
    flags = r.flags
    if flags.speculative_algorithm == "STANDALONE":
        _refuse_attention_dp(r, "speculative_standalone")
    if flags.speculative_num_steps is None:
        none_given = flags.speculative_eagle_topk is None and flags.speculative_num_draft_tokens is None
        question, read = "are all numbers of the draft given, or none?", "--speculative-num-steps, -eagle-topk, -num-draft-tokens"
        r.check("speculative_eagle.numbers", none_given, "", question, read, "no steps")
        return
    paths = flags.speculative_eagle_topk
    if r.attention is None or paths is None or paths == 1:
        return
    backend, page = r.attention
    question, read = "can this backend draft along several paths?", "--speculative-eagle-topk, attention backend, page"
    if backend == "trtllm_mha":
        message = "trtllm_mha backend only supports topk = 1 for speculative decoding."
        r.refuse("speculative_eagle.trtllm_mha", "ValueError", message, question, read, f"{paths}, {backend}, {page}")
    if r.release.at_least("0.5.13"):
        branching = _BRANCHING
        message = (
            f"speculative_eagle_topk > 1 with page_size > 1 is only supported on {_BRANCHING}; got attention_backend={backend!r}. Use "
            "page_size == 1 or one of those backends."
        )
    else:
        branching = ("flashinfer",)
        message = (
            "speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results for paged attention backends. This "
            "combination is only supported for the 'flashinfer' backend."
        )
    if page > 1 and backend not in branching:
        r.refuse("speculative_eagle.page", "ValueError", message, question, read, f"{paths}, {backend}, {page}")


_NGRAM_BREADTH = 10  # --speculative-ngram-max-bfs-breadth


def _ngram(r: Resolution) -> None:
    if r.attention is not None:
        backend, page = r.attention
        message = (
            f"speculative_eagle_topk({_NGRAM_BREADTH}) > 1 with page_size({page}) > 1 is unstable and produces incorrect results for paged "
            "attention backends. This combination is only supported for the 'flashinfer' backend."
        )
        if page > 1 and backend != "flashinfer":
            question, read = "can this backend draft along several paths?", "attention backend, page"
            r.refuse("speculative_ngram.page", "ValueError", message, question, read, f"{backend}, {page}")
    _refuse_attention_dp(r, "speculative_ngram")


def draft_backend_rules(r: Resolution) -> None:
    """From 0.5.19 the draft model may not use DeepEP v2, which it inherits where no flag says otherwise. NGRAM has no draft model."""
    algorithm, backend = r.flags.speculative_algorithm, r.flags.speculative_moe_a2a_backend
    if backend is None and algorithm and algorithm != "NGRAM":
        backend = r.a2a
    if backend == "deepep_v2":
        message = "DeepEP v2 MoE is not validated as a speculative draft backend. Select another --speculative-moe-a2a-backend."
        question = "can the draft model use this all-to-all?"
        r.refuse("deepep_v2_draft", "ValueError", message, question, "--speculative-moe-a2a-backend, a2a", backend)


def draft_runner_rules(r: Resolution) -> None:
    """0.5.23: the runners for LoRA adapters are not for the draft model."""
    runner = r.flags.speculative_moe_runner_backend or ""
    if r.flags.speculative_algorithm and runner.startswith("lora"):
        message = (
            f"--speculative-moe-runner-backend {runner} is not supported: the LoRA MoE runner serves adapter traffic on the target model"
        )
        question = "is the draft model's runner for adapters only?"
        r.refuse("lora_runner.draft", "ValueError", message, question, "--speculative-moe-runner-backend", runner)
