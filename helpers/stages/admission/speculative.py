"""Speculative decoding: the rules of it that need neither the draft model nor the attention backend.

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


def speculative_rules(r: Resolution) -> None:
    """Two ways to draft know nothing of attention data parallelism."""
    algorithm = r.flags.speculative_algorithm
    rule = {"STANDALONE": "speculative_standalone", "NGRAM": "speculative_ngram"}.get(algorithm or "")
    if rule and r.attention_dp_enabled:
        message = f"Currently {algorithm.lower()} speculative decoding does not support dp attention."
        question = "can it draft with attention data parallelism?"
        r.refuse(rule, "ValueError", message, question, "--speculative-algorithm", algorithm)


def draft_runner_rules(r: Resolution) -> None:
    """0.5.23: the runners for LoRA adapters are not for the draft model."""
    runner = r.flags.speculative_moe_runner_backend or ""
    if r.flags.speculative_algorithm and runner.startswith("lora"):
        message = (
            f"--speculative-moe-runner-backend {runner} is not supported: the LoRA MoE runner serves adapter traffic on the target model"
        )
        question = "is the draft model's runner for adapters only?"
        r.refuse("lora_runner.draft", "ValueError", message, question, "--speculative-moe-runner-backend", runner)
