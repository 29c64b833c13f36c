"""Which attention backend a launch gets by default, and the page of the KV cache that follows from it.

Modelled as far as a refusal depends on it: the prefill chunk must be a multiple of the page, and drafting along several paths needs
pages of one token or a backend that follows branches. For an architecture that is not here nothing is said.
"""

from helpers.stages.admission.resolution import Resolution

_MLA = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")
_SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
_LINEAR = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
_OWN = ("GptOssForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration")
_GEMMA4 = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
_MINIMAX_M3 = "MiniMaxM3SparseForConditionalGeneration"
_DEFAULT = (
    "Glm4MoeForCausalLM",
    "LlamaForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)

Attention = tuple[str, int]  # backend, tokens of a page
_FLASHINFER, _FA3, _TRITON, _TRTLLM = ("flashinfer", 1), ("fa3", 1), ("triton", 1), ("trtllm_mha", 64)


def attention_rules(r: Resolution) -> None:
    """What the server picks when no flag names a backend or a page."""
    chosen = _attention(r)
    if chosen is not None:
        question = "which attention backend, and how many tokens has a page?"
        r.decide("attention", "attention", chosen, question, "config.json: architectures, GPU", f"{r.facts.architecture}, {r.gpu}")


def page_rules(r: Resolution) -> None:
    """The prefill chunk must be whole pages. The last check of all."""
    if r.attention is not None and r.chunked_prefill_size > 0:
        backend, page = r.attention
        fits = r.chunked_prefill_size % page == 0
        question = "is the prefill chunk a multiple of the page?"
        r.check("page_size", fits, PAGE_SIZE, question, f"chunk, page of {backend}", f"{r.chunked_prefill_size}, {page}")


PAGE_SIZE = "chunked_prefill_size must be divisible by page_size"


def _attention(r: Resolution) -> Attention | None:
    architecture = r.facts.architecture
    if architecture == "DeepseekV4ForCausalLM":
        return "dsv4", 256
    if architecture in _SPARSE:
        return "dsa" if r.release.at_least("0.5.13") else "nsa", 64
    if architecture in _MLA:
        return ("trtllm_mla", 64) if r.gpu.is_sm100 else _FA3 if r.gpu.is_sm90 else _TRITON
    if architecture in _OWN:
        return _TRTLLM if r.gpu.is_sm100 else _FA3 if r.gpu.is_sm90 else _TRITON
    if architecture in _GEMMA4:
        return _gemma4(r)
    if architecture in _LINEAR and r.gpu.is_sm100:
        return _TRTLLM if _drafts_along_one_path(r) else _TRITON
    if architecture == "NemotronHForCausalLM" and r.gpu.is_blackwell:
        return _nemotron_h(r)
    if architecture == _MINIMAX_M3 and r.release.at_least("0.5.16") and (r.gpu.is_sm100 or r.gpu.is_sm90):
        return ("fa4" if r.gpu.is_sm100 else "fa3"), 128
    known = (*_DEFAULT, *_LINEAR, "NemotronHForCausalLM", _MINIMAX_M3)
    return _default(r) if architecture in known else None


def _drafts_along_one_path(r: Resolution) -> bool:
    return bool(r.flags.speculative_algorithm) and r.flags.speculative_eagle_topk == 1


def _drafts_along_several(r: Resolution) -> bool:
    return bool(r.flags.speculative_algorithm) and (r.flags.speculative_eagle_topk or 1) > 1


def _default(r: Resolution) -> Attention:
    """For a model without latent attention."""
    if r.gpu.is_sm90 and not _drafts_along_several(r):
        return _FA3
    if r.gpu.is_sm100 and (not r.flags.speculative_algorithm or _drafts_along_one_path(r)):
        return _TRTLLM
    return _FLASHINFER


def _gemma4(r: Resolution) -> Attention:
    """Up to 0.5.12 only the class with a vision tower has a rule; 0.5.13 leaves models with experts on triton."""
    if not r.release.at_least("0.5.13"):
        return _default(r) if r.facts.architecture == "Gemma4ForCausalLM" else _TRITON
    experts = r.facts.checkpoint.text_config.get("enable_moe_block")
    return _TRTLLM if r.gpu.is_sm100 and (r.release.at_least("0.5.14") or not experts) else _TRITON


def _nemotron_h(r: Resolution) -> Attention:
    """On Blackwell: FlashInfer up to 0.5.18; then trtllm_mha on data-centre GPUs, and triton where a draft needs it."""
    if not r.release.at_least("0.5.19"):
        return _FLASHINFER
    if r.gpu.is_sm100 and not _drafts_along_several(r):
        return _TRTLLM
    return _TRITON if r.flags.speculative_algorithm else _FLASHINFER
