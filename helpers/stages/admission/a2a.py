"""The all-to-all backends: what each asks of the deployment, and what it rewrites. ``_handle_a2a_moe``, ``handle_a2a_moe``."""

from functools import cache

from helpers.deployment import Release
from helpers.stages.admission.resolution import Resolution


@cache
def spanning(release: Release) -> frozenset[str]:
    """The backends under which expert parallelism always spans the whole tp group."""
    names = {"deepep", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "mori"}
    for first, name in (("0.5.12", "megamoe"), ("0.5.17", "pplx"), ("0.5.19", "deepep_v2"), ("0.5.20", "flashinfer_megamoe")):
        if release.at_least(first):
            names.add(name)
    return frozenset(names)


def early_rules(r: Resolution) -> None:
    """Before anything else: the runner name megamoe is another spelling of the all-to-all (0.5.18), and needs a GPU (0.5.21)."""
    if r.runner == "megamoe":
        r.runner = "auto"
        r.decide("megamoe_alias", "a2a", "megamoe", "is this runner a name for an all-to-all?", "--moe-runner-backend", "megamoe")
    if r.a2a == "megamoe" and r.release.at_least("0.5.21"):
        question = "can this GPU run megamoe?"
        if not (r.gpu.is_sm90 or r.gpu.is_sm100):
            message = (
                "--moe-a2a-backend megamoe needs a CUDA SM90 GPU (block-FP8 experts) or an SM100-class GPU (MXFP4 / NVFP4 experts); "
                "it runs DeepGEMM kernels over CUDA symmetric memory. On ROCm, set SGLANG_AMD_USE_FLYDSL_MEGA_MOE=1 to select aiter "
                "MegaMoEv2 instead."
            )
            r.refuse("megamoe_gpu", "ValueError", message, question, "GPU", r.gpu)
        r.note("megamoe_gpu", question, "GPU", r.gpu, "yes")


def a2a_rules(r: Resolution) -> None:
    """In SGLang's order. The ep size is rewritten here, after the runner's own check of it."""
    asked, variable = r.a2a, "SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE"
    if r.release.at_least("0.5.12") and not r.release.at_least("0.5.18") and r.a2a != "megamoe" and r.switch(variable):
        r.decide("a2a_backend", "a2a", "megamoe", "does a variable pick the all-to-all?", variable, "1")
    if r.a2a in spanning(r.release):
        r.decide("a2a_ep", "ep", r.tp, "what does this all-to-all make of ep?", "--moe-a2a-backend", r.a2a)
    if r.a2a in ("flashinfer", "flashinfer_megamoe", "deepep_v2"):
        question = "may shared experts be fused into the experts?"
        r.decide("a2a_fusion", "disable_shared_experts_fusion", True, question, "--moe-a2a-backend", r.a2a)
    if r.a2a != "flashinfer" and r.flags.flashinfer_a2a_dispatch_type not in (None, "auto"):
        message = "--flashinfer-a2a-dispatch-type requires --moe-a2a-backend flashinfer."
        question = "is there a dispatch whose type can be set?"
        r.refuse(
            "a2a.dispatch_flag", "ValueError", message, question, "--flashinfer-a2a-dispatch-type", r.flags.flashinfer_a2a_dispatch_type
        )
    rule = _BACKENDS.get(r.a2a)
    if rule is not None:
        rule(r)
    if asked == "flashinfer" and r.a2a == "megamoe" and r.release.at_least("0.5.16"):
        _flashinfer(r)  # to 0.5.17 the raw flag is checked as well, although the variable has replaced it


def _ascend_tp(r: Resolution) -> None:
    r.decide("a2a", "a2a", "none", "what does this all-to-all become?", "--moe-a2a-backend", "ascend_tp")


def _megamoe(r: Resolution) -> None:
    variable = "SGLANG_OPT_FIX_MEGA_MOE_MEMORY"
    if not r.release.at_least("0.5.18") and not r.is_set(variable):
        r.export("a2a", variable, "True", "which variables does this all-to-all set?", "--moe-a2a-backend", "megamoe")


def _deepep(r: Resolution) -> None:
    """flashinfer_cutedsl has no kernel for DeepEP's normal dispatch: nothing says so before 0.5.17."""
    question = "which DeepEP mode can the runner use?"
    # 0.5.17 and 0.5.18 look at the flag, not at what the runner has become.
    runner = r.runner if r.release.at_least("0.5.19") else r.flags.runner
    if r.release.at_least("0.5.17") and runner == "flashinfer_cutedsl":
        if r.deepep_mode == "auto":
            r.decide("a2a", "deepep_mode", "low_latency", question, "runner", runner)
        elif r.deepep_mode == "normal":
            message = (
                "flashinfer_cutedsl FP4 MoE only supports DeepEP low_latency dispatch (masked layout). DeepEP normal (prefill) "
                "dispatch has no CuteDSL FP4 handler. Pass --deepep-mode low_latency or auto."
            )
            r.refuse("a2a.deepep_mode", "ValueError", message, question, "--deepep-mode", "normal")
    if r.deepep_mode == "normal":
        r.note("a2a", "can CUDA graphs be captured?", "--deepep-mode", "normal", "no")


@cache
def _deepep_v2_architectures(release: Release) -> tuple[str, ...]:
    names = ("DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM", "Qwen3MoeForCausalLM")
    if release.at_least("0.5.21"):
        names += ("Glm5NextForConditionalGeneration",)
    if release.at_least("0.5.22"):
        names += ("GlmMoeDsaForCausalLM", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
    return names


def _deepep_v2(r: Resolution) -> None:
    """New in 0.5.19: a list of architectures, and DeepGEMM only."""
    names, architecture = _deepep_v2_architectures(r.release), r.facts.architecture
    question = "is this architecture in DeepEP v2's list?"
    if architecture not in names:
        if r.release.at_least("0.5.21"):
            message = (
                f"DeepEP v2 MoE is not validated for {architecture!r}. The model package must register its architecture with "
                "register_deepep_v2_model, because its combine and post-expert reduction semantics must be validated first."
            )
        else:
            message = (
                f"DeepEP v2 MoE is not validated for {architecture!r}; supported architectures are {sorted(names)}. Other model "
                "workflows may require an all-reduce after A2A combine. Use --moe-a2a-backend deepep."
            )
        r.refuse("deepep_v2_architecture", "ValueError", message, question, "config.json: architectures", architecture)
    if not r.is_set("NCCL_CUMEM_ENABLE"):
        r.export("a2a", "NCCL_CUMEM_ENABLE", "1", "which variables does this all-to-all set?", "--moe-a2a-backend", "deepep_v2")
    if r.runner == "auto":
        r.decide("a2a", "runner", "deep_gemm", "which MoE runner does auto mean here?", "--moe-a2a-backend", "deepep_v2")
    elif r.runner != "deep_gemm":
        message = (
            f"DeepEP v2 MoE currently supports only --moe-runner-backend deep_gemm. Got {r.runner!r}. Add a runner adapter before "
            "enabling DeepEP v2 with other MoE runners."
        )
        r.refuse("a2a.deepep_v2_runner", "ValueError", message, "can this runner use DeepEP v2?", "runner", r.runner)


@cache
def _megamoe_architectures(release: Release) -> tuple[str, ...]:
    names = (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm4MoeForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
    )
    if release.at_least("0.5.21"):
        names += ("GlmMoeDsaForCausalLM",)
    if release.at_least("0.5.23"):
        names += ("BeamForCausalLM", "KimiK3ForConditionalGeneration", "KimiK3LinearForCausalLM")
    return tuple(sorted(names))


def _flashinfer_megamoe(r: Resolution) -> None:
    """New in 0.5.20: a list of architectures, NVFP4 or MXFP8 only, attention data parallel over all of tp, data-centre Blackwell."""
    names = r.facts.checkpoint.config.get("architectures") or []
    known = _megamoe_architectures(r.release)
    if not any(name in known for name in names):
        message = f"FlashInfer MegaMOE is not validated for model architectures {names}. Supported architectures: {list(known)}."
        question = "is this architecture in FlashInfer MegaMoE's list?"
        r.refuse("megamoe_model.architecture", "ValueError", message, question, "config.json: architectures", r.facts.architecture)
    w4a16 = r.release.at_least("0.5.23") and r.switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
    fits = r.quantization in ("mxfp8", "modelopt_fp4") or r.facts.hybrid_nvfp4 or (w4a16 and r.quantization == "nvfp4_online")
    if not fits and not r.facts.has_fp4_experts:
        formats = (
            "NVFP4, FP4-expert, hybrid NVFP4 MoE checkpoints, or nvfp4_online with SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1"
            if r.release.at_least("0.5.23")
            else "NVFP4, FP4-expert, or hybrid NVFP4 MoE checkpoints"
        )
        message = (
            f"FlashInfer MegaMOE currently supports only MXFP8, ModelOpt {formats}; got quantization={r.quantization!r}. "
            "Standard FP8 MoE checkpoints are not supported."
        )
        question = "can FlashInfer MegaMoE take this quantization?"
        r.refuse("megamoe_model.quantization", "ValueError", message, question, "server_args.quantization", r.quantization)
    if r.release.at_least("0.5.22"):
        message = "FlashInfer MegaMOE is only supported with --attn-dp-size equal to --tp-size"
    else:
        message = "FlashInfer MegaMOE is only supported with dp_size == tp_size and --enable-dp-attention"
    _check_attention_dp(r, message)
    if r.runner == "auto":
        question = "which MoE runner does auto mean here?"
        r.decide("a2a", "runner", "flashinfer_megamoe", question, "--moe-a2a-backend", "flashinfer_megamoe")
    message = "FlashInfer MegaMOE a2a backend requires --moe-runner-backend flashinfer_megamoe"
    question = "can this runner use FlashInfer MegaMoE?"
    r.check("a2a.megamoe_runner", r.runner == "flashinfer_megamoe", message, question, "runner", r.runner)
    if not r.gpu.is_sm100:
        message = "FlashInfer MegaMOE currently requires an SM100-family CUDA device for all supported quantization formats."
        r.refuse("a2a.megamoe_gpu", "ValueError", message, "can this GPU run FlashInfer MegaMoE?", "GPU", r.gpu)
    if r.release.at_least("0.5.23"):
        for variable, value in _NVSHMEM.items():
            if not r.is_set(variable):
                r.export("a2a", variable, value, "which variables does this all-to-all set?", "--moe-a2a-backend", "flashinfer_megamoe")


_NVSHMEM = {"NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_IB_ENABLE_IBGDA": "0", "NVSHMEM_DISABLE_LOCAL_ONLY_PROXY": "1"}


def _check_attention_dp(r: Resolution, message: str) -> None:
    """Attention must be data parallel over the whole tp group. Before 0.5.22 one GPU (dp 1) does not count as such."""
    fits = r.attention_dp == r.tp and r.attention_dp > 1
    r.check(
        "a2a.attention_dp", fits, message, "is attention data parallel over all of tp?", "--dp-size, --tp-size", f"{r.attention_dp}, {r.tp}"
    )


def _flashinfer(r: Resolution) -> None:
    """FlashInfer's all-to-all: attention must be data parallel over all of tp, and few runners have a function for it."""
    if r.release.at_least("0.5.13"):
        _check_attention_dp(r, _dp_message(r.release))
    w4a16 = r.release.at_least("0.5.19") and r.runner == "flashinfer_cutedsl" and r.switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
    if w4a16 and r.switch("SGLANG_MOE_NVFP4_DISPATCH"):
        message = "CuTe DSL NVFP4 W4A16 requires BF16 FlashInfer MoE dispatch; unset SGLANG_MOE_NVFP4_DISPATCH."
        r.refuse("a2a.w4a16_dispatch", "ValueError", message, "are tokens sent as BF16?", "SGLANG_MOE_NVFP4_DISPATCH", "1")
    if r.flags.flashinfer_a2a_dispatch_type is None:
        _nvfp4_dispatch(r, w4a16)
    else:
        _dispatch_type(r, w4a16)
    runners, message = _flashinfer_runners(r.release)
    r.check("a2a.flashinfer_runner", r.runner in runners, message, "can this runner use FlashInfer's all-to-all?", "runner", r.runner)


def _nvfp4_dispatch(r: Resolution, w4a16: bool) -> None:
    """Are tokens sent as NVFP4? Decided by the name modelopt_fp4 from 0.5.15 (before: always), so a mixed checkpoint sends BF16."""
    question, read = "are tokens sent as NVFP4?", "SGLANG_MOE_NVFP4_DISPATCH, server_args.quantization"
    if r.is_set("SGLANG_MOE_NVFP4_DISPATCH"):
        r.note("a2a", question, read, f"SGLANG_MOE_NVFP4_DISPATCH={r.environment['SGLANG_MOE_NVFP4_DISPATCH']}", "as the variable says")
    elif not w4a16 and (r.quantization == "modelopt_fp4" or r.facts.hybrid_nvfp4 or not r.release.at_least("0.5.15")):
        r.export("a2a", "SGLANG_MOE_NVFP4_DISPATCH", "True", question, read, r.quantization)
    else:
        r.note("a2a", question, read, r.quantization, "no: BF16, about four times the bytes")


def _dispatch_type(r: Resolution, w4a16: bool) -> None:
    """--flashinfer-a2a-dispatch-type, new in 0.5.20. It reads the quantization by name too."""
    rule, asked = "dispatch_type", r.flags.flashinfer_a2a_dispatch_type
    question, read = "are tokens sent as NVFP4?", "--flashinfer-a2a-dispatch-type, server_args.quantization"
    if r.runner == "flashinfer_trtllm":
        r.decide("a2a", "runner", "flashinfer_trtllm_routed", "which kernel takes routed tokens?", "runner", "flashinfer_trtllm")
    if w4a16 and asked in ("auto", "nvfp4"):
        message = "CuTe DSL NVFP4 W4A16 requires --flashinfer-a2a-dispatch-type bf16."
        r.refuse("a2a.w4a16_dispatch", "ValueError", message, question, read, asked)
    if r.is_set("SGLANG_MOE_NVFP4_DISPATCH"):
        message = "SGLANG_MOE_NVFP4_DISPATCH cannot be set together with --flashinfer-a2a-dispatch-type."
        r.refuse("dispatch_type.variable", "ValueError", message, question, "SGLANG_MOE_NVFP4_DISPATCH", "set")
    nvfp4 = r.quantization == "modelopt_fp4" or r.facts.hybrid_nvfp4
    dispatch = asked
    if asked == "auto":
        dispatch = "mxfp8" if r.quantization == "mxfp8" else "nvfp4" if nvfp4 else "bf16"
    if dispatch == "mxfp8" and r.quantization != "mxfp8":
        message = "--flashinfer-a2a-dispatch-type mxfp8 requires --quantization mxfp8."
        r.refuse("dispatch_type.quantization", "ValueError", message, question, read, r.quantization)
    if dispatch == "mxfp8" and r.runner != "flashinfer_trtllm_routed":
        message = "--flashinfer-a2a-dispatch-type mxfp8 requires --moe-runner-backend flashinfer_trtllm_routed."
        r.refuse("dispatch_type.runner", "ValueError", message, question, "runner", r.runner)
    if dispatch == "nvfp4" and not nvfp4:
        message = "--flashinfer-a2a-dispatch-type nvfp4 requires NVFP4/modelopt-FP4 quantization or hybrid NVFP4 MoE metadata."
        r.refuse("dispatch_type.quantization", "ValueError", message, question, read, r.quantization)
    r.decide(rule, "dispatch_type", dispatch, question, read, f"{asked}, {r.quantization}")


def _dp_message(release: Release) -> str:
    if release.at_least("0.5.23"):
        return (
            "Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size, except for Muse Spark TP4/EP4 or TP8/EP8 prefill "
            "sequence parallelism."
        )
    if release.at_least("0.5.22"):
        return "Flashinfer MoE A2A is only supported with --attn-dp-size equal to --tp-size"
    return "Flashinfer MoE A2A is only supported with dp_size == tp_size and --enable-dp-attention"


@cache
def _flashinfer_runners(release: Release) -> tuple[tuple[str, ...], str]:
    if release.at_least("0.5.19"):
        runners = ("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed", "deep_gemm")
        return runners, f"FlashInfer MoE A2A is supported with {', '.join(runners[:-1])}, or deep_gemm."
    runners = ("flashinfer_cutlass",)
    listed = "flashinfer_cutlass"
    if release.at_least("0.5.13"):
        runners, listed = (*runners, "flashinfer_cutedsl"), "flashinfer_cutlass or flashinfer_cutedsl"
    if release.at_least("0.5.15"):
        runners = (*runners, "flashinfer_trtllm_routed")
        listed = "flashinfer_cutlass, flashinfer_cutedsl or flashinfer_trtllm_routed"
    return runners, f"Flashinfer MoE A2A is only supported with {listed} moe runner backend"


def _mori(r: Resolution) -> None:
    """AMD's all-to-all. On NVIDIA its second version is never chosen (0.5.22), because its experts run on AMD's kernels."""
    variable = "SGLANG_MORI_EP_V2"
    if r.release.at_least("0.5.22") and not r.is_set(variable):
        r.export("a2a", variable, "False", "which version of MoRI is used?", variable, "not set")
    if r.deepep_mode == "auto":
        r.decide("a2a", "deepep_mode", "normal", "which DeepEP mode can MoRI use?", "--deepep-mode", "auto")
    if r.chunked_prefill_size > 0:
        variable = "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
        room = r.number(variable, 4096)
        if r.release.at_least("0.5.15"):
            message = f"{variable} (default 4096) must be >= the per-rank MoRI dispatch tokens (chunked_prefill_size by default)"
        else:
            message = f"{variable} (default 4096) must be larger or equal to chunked_prefill_size"
        fits = r.chunked_prefill_size <= room
        r.check(
            "a2a.mori_tokens", fits, message, "does a chunk fit MoRI's buffer?", f"chunk, {variable}", f"{r.chunked_prefill_size}, {room}"
        )


def _pplx(r: Resolution) -> None:
    """New in 0.5.17: low latency only, at least two attention groups, DeepGEMM only."""
    question = "which DeepEP mode can pplx use?"
    if r.deepep_mode == "normal":
        message = "moe_a2a_backend='pplx' only supports low-latency mode; set --deepep-mode to 'low_latency' or 'auto'."
        r.refuse("a2a.pplx_mode", "ValueError", message, question, "--deepep-mode", "normal")
    if r.deepep_mode == "auto":
        r.decide("a2a", "deepep_mode", "low_latency", question, "--deepep-mode", "auto")
    if r.release.at_least("0.5.22"):
        message = "moe_a2a_backend='pplx' requires attention DP with at least 2 groups (--attn-dp-size >= 2)."
    else:
        message = "moe_a2a_backend='pplx' requires --enable-dp-attention with at least 2 DP groups (--dp-size >= 2)."
    r.check("a2a.pplx_dp", r.attention_dp >= 2, message, "are there two attention groups?", "--dp-size", r.attention_dp)
    message = "moe_a2a_backend='pplx' is only supported with --moe-runner-backend deep_gemm (or auto)."
    r.check("a2a.pplx_runner", r.runner in ("deep_gemm", "auto"), message, "can this runner use pplx?", "runner", r.runner)
    if r.runner == "auto":
        r.decide("a2a", "runner", "deep_gemm", "which MoE runner does auto mean here?", "--moe-a2a-backend", "pplx")
    if r.chunked_prefill_size > 0:
        variable = "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
        room, tokens = r.number(variable, 128), max(r.chunked_prefill_size, r.flags.cuda_graph_max_bs or 0)
        message = (
            f"{variable} (default 128) must be >= the per-rank pplx dispatch tokens (chunked_prefill_size, or the decode cuda-graph "
            "batch size)"
        )
        r.check("a2a.pplx_tokens", tokens <= room, message, "does a chunk fit pplx's buffer?", f"chunk, {variable}", f"{tokens}, {room}")


_BACKENDS = {
    "ascend_tp": _ascend_tp,
    "megamoe": _megamoe,
    "deepep": _deepep,
    "deepep_v2": _deepep_v2,
    "flashinfer": _flashinfer,
    "flashinfer_megamoe": _flashinfer_megamoe,
    "mori": _mori,
    "pplx": _pplx,
}
