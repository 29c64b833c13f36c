"""Stage 2: do the server's arguments pass, and what do they become?

SGLang resolves its arguments in one long sequence before anything is loaded: defaults by GPU memory, ModelConfig, rules of the
architecture, data parallelism, the runner's allowlist, the all-to-all, token budgets. `admit` follows that order, so that the
first refusal is SGLang's first refusal, with its exact text.

Not followed: most rules of speculative decoding, LoRA, disaggregated prefill and decode, pipeline and context parallelism, EPLB,
HiCache, attention backends and pages set by hand, and what a package missing on the machine refuses. A deployment that does not use
them does not meet those rules.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from helpers.checkpoint import Checkpoint
from helpers.deployment import Deployment
from helpers.findings import Finding
from helpers.stages.admission.a2a import a2a_rules, early_rules
from helpers.stages.admission.allowlists import kernel_rules
from helpers.stages.admission.attention import PAGE_SIZE, attention_rules, page_rules
from helpers.stages.admission.budget import budget_rules
from helpers.stages.admission.facts import Facts
from helpers.stages.admission.families import architecture_rules
from helpers.stages.admission.model_config import model_config_rules
from helpers.stages.admission.remedies import finding, whole_pages
from helpers.stages.admission.resolution import Refused, Resolution
from helpers.stages.admission.sizes import memory_rules, parallel_rules
from helpers.stages.admission.sources import source
from helpers.stages.admission.speculative import draft_backend_rules, draft_runner_rules, radix_cache_rules, speculative_rules
from helpers.stages.detect import Detection
from helpers.stages.steps import Step


@dataclass(frozen=True, eq=False)
class Admission:
    """What the arguments became, or the refusal.

    error, message, error_source: exception type, exact text, ``sglang RELEASE file: function``; all "" when accepted. The other
    values are as resolved, up to the refusal when there is one: quantization is ``server_args.quantization``,
    model_quantization ModelConfig's name; env the variables the server sets for itself.
    """

    accepted: bool
    error: str
    message: str
    error_source: str
    quantization: str | None
    model_quantization: str | None
    runner: str
    a2a: str
    ep_size: int
    attention_dp: int
    deepep_mode: str
    chunked_prefill_size: int | None
    disable_shared_experts_fusion: bool
    env: dict[str, str]
    findings: tuple[Finding, ...]
    resolution: Resolution

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every question on the way, in SGLang's order; the last one is the refusal when there is one."""
        return self.resolution.steps()


@lru_cache(maxsize=64)
def _facts(checkpoint: Checkpoint, detection: Detection) -> Facts:
    return Facts(checkpoint, detection)


def admit(checkpoint: Checkpoint, detection: Detection, deployment: Deployment) -> Admission:
    """Resolve the deployment's arguments for this checkpoint as its SGLang release does."""
    r = Resolution(deployment, _facts(checkpoint, detection))
    error = message = error_source = ""
    findings: tuple[Finding, ...] = ()
    try:
        _resolve(r)
    except Refused as refused:
        error, message, error_source = refused.error, refused.message, f"sglang {r.release} {refused.place}"
        # Without a flag ModelConfig's refusal is about the checkpoint alone: the detect stage has said it.
        if not (refused.rule == "model_config" and detection.error):
            findings = (finding(r, refused),)
    else:
        findings = _unknown_page(r)
    return Admission(
        accepted=not error,
        error=error,
        message=message,
        error_source=error_source,
        quantization=r.quantization,
        model_quantization=r.model_quantization,
        runner=r.runner,
        a2a=r.a2a,
        ep_size=r.ep,
        attention_dp=r.attention_dp,
        deepep_mode=r.deepep_mode,
        chunked_prefill_size=r.chunked_prefill_size,
        disable_shared_experts_fusion=r.disable_shared_experts_fusion,
        env=r.exported,
        findings=findings,
        resolution=r,
    )


# No attention backend that SGLang chooses by itself pages the KV cache in larger units.
_LARGEST_PAGE = 256


def _unknown_page(r: Resolution) -> tuple[Finding, ...]:
    """The prefill chunk must be a multiple of the page, and this architecture's attention backend is not in attention.py."""
    chunk = r.chunked_prefill_size
    if r.attention is not None or chunk is None or chunk <= 0 or chunk % _LARGEST_PAGE == 0:
        return ()
    return (
        Finding(
            id="admit.page_size",
            stage="admit",
            severity="abstained",
            read="--chunked-prefill-size, --dp-size",
            observed=f"a chunk of {chunk} tokens for one attention group",
            expected=f"a multiple of the KV cache's page size; a multiple of {_LARGEST_PAGE} always is one",
            why=f'SGLang asserts "{PAGE_SIZE}"; the page size follows from the attention backend it chooses, 1 to {_LARGEST_PAGE}',
            source=source("page_size", r.release),
            remedy=whole_pages(r, _LARGEST_PAGE),
            releases=(r.release.version,),
        ),
    )


def _resolve(r: Resolution) -> None:
    early_rules(r)
    _defaults(r)
    memory_rules(r)
    model_config_rules(r)
    architecture_rules(r)
    radix_cache_rules(r)
    parallel_rules(r)
    attention_rules(r)
    kernel_rules(r)
    a2a_rules(r)
    _marlin_lora(r)
    speculative_rules(r)
    draft_backend_rules(r)
    budget_rules(r)
    draft_runner_rules(r)
    _lora_runner(r)
    page_rules(r)


def _defaults(r: Resolution) -> None:
    """``--quantization unquant`` means: none, and do not fill it in either. _handle_missing_default_values."""
    question = "what was asked for?"
    if r.quantization == "unquant":
        r.quantization_unset_on_purpose = True
        r.decide("defaults", "quantization", None, question, "--quantization", "unquant")
    else:
        r.note("defaults", question, "--quantization", r.quantization, "kept as it is: this text is what the allowlists will read")


def _marlin_lora(r: Resolution) -> None:
    """experimental_sgl_marlin, new in 0.5.16, has no all-to-all."""
    if r.runner == "experimental_sgl_marlin" and r.ep > 1:
        question = "can this runner use the all-to-all?"
        if r.a2a != "none":
            message = "experimental_sgl_marlin EP requires --moe-a2a-backend none"
            r.refuse("marlin_lora", "ValueError", message, question, "--moe-a2a-backend, ep", f"{r.a2a}, {r.ep}")


def _lora_runner(r: Resolution) -> None:
    """lora_cutedsl, lora_triton and lora_marlin, new in 0.5.23, are for adapters only."""
    if r.runner in ("lora_cutedsl", "lora_triton", "lora_marlin"):
        message = f"--moe-runner-backend {r.runner} requires --enable-lora (or --lora-paths)"
        r.refuse("lora_runner", "ValueError", message, "is this runner for adapters only?", "runner", r.runner)
