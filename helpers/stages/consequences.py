"""What follows from a routing on one deployment: which layer class and runner each expert block ends with, and what that does.

The rules read the summary of a routing (the kinds of expert blocks), never its modules, so that a sweep over deployments costs
microseconds each. Rules that follow from the checkpoint's geometry alone are in load.py.
"""

from collections.abc import Callable, Iterator

from helpers.checkpoint import Checkpoint
from helpers.deployment import RELEASES, Deployment
from helpers.findings import Finding
from helpers.stages.case import FUSED_FUNCTIONS, FUSED_ONLY, Case, backend
from helpers.stages.detect import Detection
from helpers.stages.load import LOAD_RULES, experts_built_dense
from helpers.stages.methods import NVFP4_EXPERTS
from helpers.stages.modules import family_of
from helpers.stages.route import Routing
from helpers.stages.shape import SHAPE_RULES

NVFP4 = "layers/quantization/modelopt_quant.py: ModelOptNvFp4FusedMoEMethod"
PR_30443 = "https://github.com/sgl-project/sglang/pull/30443"


def consequences(checkpoint: Checkpoint, detection: Detection, admission, routing: Routing, deployment: Deployment) -> tuple[Finding, ...]:
    """Findings of the route and load stages for this deployment. Empty when the arguments were refused: nothing is built then."""
    if not admission.accepted or routing.error:
        return ()
    dense = experts_built_dense(checkpoint, routing)
    if not routing.expert_kinds:
        return dense
    case = Case(checkpoint, detection, admission, routing, deployment)
    return dense + tuple(finding for rule in RULES for finding in rule(case))


def versions(first: str, last: str | None = None) -> tuple[str, ...]:
    """The releases from ``first`` to ``last`` (default: newest)."""
    return tuple(r.version for r in RELEASES if r.at_least(first) and (last is None or r.version == last or not r.at_least(last)))


def _block(case: Case) -> str:
    """Words for what was looked at."""
    runner = case.runner if case.admission.runner == case.deployment.runner else f"{case.runner} (from {case.deployment.runner})"
    return f"--moe-runner-backend {runner}, --moe-a2a-backend {case.a2a}"


# --- building the NVFP4 block ------------------------------------------------------------------------------------------


def nvfp4_needs_blackwell(case: Case) -> Iterator[Finding]:
    """The method's constructor refuses a GPU without NVFP4 tensor cores; Marlin's weight-only path is the way out from 0.5.13."""
    if not case.nvfp4 or case.blackwell:
        return
    marlin = case.release.at_least("0.5.13")
    if marlin and (case.runner == "marlin" or (case.runner == "auto" and case.hopper_or_ampere)):
        return
    message = (
        "Current platform does not support NVFP4 quantization with the selected MoE backend. Please use "
        "Blackwell and above, or use moe_runner_backend=marlin on SM80+."
        if marlin
        else "Current platform does not support NVFP4 quantization. Please use Blackwell and above."
    )
    yield Finding(
        id="route.nvfp4_needs_blackwell",
        stage="route",
        severity="fails_to_load",
        read=f"GPU {case.deployment.gpu.key} ({case.deployment.gpu.arch})",
        observed=f"ValueError: {message}",
        expected="a Blackwell GPU, or the marlin runner on SM80 and newer" if marlin else "a Blackwell GPU",
        why="the NVFP4 expert method checks the GPU when its layer is built",
        source=f"sglang {case.release} {NVFP4}.__init__",
        remedy="--moe-runner-backend marlin" if marlin else "use SGLang 0.5.13 or newer with --moe-runner-backend marlin",
        releases=versions("0.5.13") if marlin else versions("0.5.11", "0.5.12.post1"),
    )


def cutlass_is_refused(case: Case) -> Iterator[Finding]:
    """The plain CUTLASS runner serves NVFP4 experts in 0.5.15 and 0.5.15.post1 only."""
    if not case.nvfp4 or case.runner != "cutlass" or case.release.version in ("0.5.15", "0.5.15.post1"):
        return
    late = case.release.at_least("0.5.16")
    message = (
        "moe_runner_backend=cutlass is not supported for NVFP4 MoE. Use --moe-runner-backend flashinfer_cutlass instead."
        if late
        else f"Unsupported runner backend: {backend('cutlass')}"
    )
    yield Finding(
        id="route.cutlass_refused_for_nvfp4",
        stage="route",
        severity="fails_to_load",
        read=_block(case),
        observed=f"NotImplementedError: {message}",
        expected="a runner with an NVFP4 kernel",
        why="the block's runner is made when the layer is built, after the arguments passed",
        source=f"sglang {case.release} {NVFP4}.create_moe_runner",
        remedy="--moe-runner-backend flashinfer_cutlass",
        releases=versions("0.5.16") if late else versions("0.5.11", "0.5.14"),
    )


def fused_function_is_missing(case: Case) -> Iterator[Finding]:
    """A runner that exists only as a fused function needs one for this all-to-all."""
    for _, method in sorted(case.kinds, key=str):
        runner = case.runner_of(method)
        if runner not in FUSED_ONLY or (case.a2a == "megamoe" and case.release.at_least("0.5.21")):
            continue
        first = FUSED_FUNCTIONS.get((case.a2a, runner))
        if first is not None and case.release.at_least(first):
            continue
        yield Finding(
            id="route.no_fused_function",
            stage="route",
            severity="fails_to_load",
            read=_block(case),
            observed=f"NotImplementedError: Runner backend {backend(runner)} requires a fused func for a2a backend {case.a2a}, "
            "but none is registered.",
            expected=f"a runner that has a kernel for {case.a2a}",
            why="the arguments allow the pair, and the block's runner finds no kernel for it when the layer is built",
            source=f"sglang {case.release} layers/moe/moe_runner/runner.py: MoeRunner.__init__",
            remedy="--moe-runner-backend flashinfer_cutedsl" if case.a2a in ("deepep", "flashinfer") else "--moe-a2a-backend none",
            reference="https://github.com/sgl-project/sglang/issues/24502",
            releases=versions("0.5.11") if first is None else tuple(v.version for v in RELEASES if not v.at_least(first)),
        )
        return


# --- DeepEP ------------------------------------------------------------------------------------------------------------


def deepep_takes_the_dead_path(case: Case) -> Iterator[Finding]:
    """A DeepEPMoE block whose deprecate_flag is false runs into an assertion that its kernels are gone."""
    if case.layer_class != "DeepEPMoE" or case.routing.quant_config == "W4AFp8Config":
        return
    for algorithm, method in sorted(case.kinds, key=str):
        runner = case.runner_of(method)
        built = runner not in FUSED_ONLY or (case.a2a, runner) in FUSED_FUNCTIONS
        if not built or case.deprecate_flag(method) or _served_by_deepep_itself(case, method):
            continue
        mode = case.admission.deepep_mode
        at_load = mode in ("auto", "low_latency") and not case.deep_gemm and not _own_cutedsl_kernel(case)
        forward = "forward_deepgemm_masked" if mode == "low_latency" else "forward_deepgemm_contiguous"
        message = f"DeepEP DeepEPMode.{mode.upper()} mode requires deep_gemm" if at_load else f"{forward} is deprecated"
        mixed = case.routing.quantization == "modelopt_mixed" and case.runner == "flashinfer_cutedsl"
        early = mixed and not case.release.at_least("0.5.16")
        yield Finding(
            id="route.deepep_deprecated_path",
            stage="route",
            severity="fails_to_load" if at_load else "fails_at_first_forward",
            read=f"{_block(case)}; quantisation {case.routing.quantization}; block {algorithm} ({method})",
            observed=f"AssertionError: {message}",
            expected="deprecate_flag true, so that the block takes FusedMoE's path",
            why="DeepEPMoE hands over to FusedMoE only for the quantisation names it lists; its own kernels are gone"
            if not case.release.at_least("0.5.23")
            else "DeepEPMoE hands over to FusedMoE only when the layer's own runner is CuTe DSL, and this layer's is not",
            source=f"sglang {case.release} layers/moe/ep_moe/layer.py: DeepEPMoE.__init__ and run_moe_core",
            remedy=_off_the_dead_path(early, mixed),
            reference=PR_30443 if early else "",
            releases=versions("0.5.13", "0.5.15.post1") if early else (case.release.version,),
        )
        return


def _off_the_dead_path(early: bool, mixed: bool) -> str:
    if early:
        return "use SGLang 0.5.16 or newer"
    return "--moe-a2a-backend none" if mixed else "--moe-runner-backend flashinfer_cutedsl"


def _own_cutedsl_kernel(case: Case) -> bool:
    """Up to 0.5.12.post1 DeepEPMoE called the CuTe DSL kernel itself, for the name modelopt_fp4."""
    return not case.release.at_least("0.5.13") and case.runner == "flashinfer_cutedsl" and case.routing.quantization == "modelopt_fp4"


def _served_by_deepep_itself(case: Case, method: str) -> bool:
    """… and only for low-latency dispatch."""
    return _own_cutedsl_kernel(case) and method == NVFP4_EXPERTS and case.admission.deepep_mode == "low_latency"


def deepep_normal_dispatch(case: Case) -> Iterator[Finding]:
    """CuTe DSL over DeepEP reads the low-latency format only; up to 0.5.16 "auto" still dispatches prefill the other way."""
    if not (case.nvfp4 and case.cutedsl_v1) or case.release.at_least("0.5.17") or not case.release.at_least("0.5.13"):
        return
    if case.admission.deepep_mode == "low_latency" or not case.deprecate_flag(NVFP4_EXPERTS):
        return
    yield Finding(
        id="route.deepep_normal_dispatch",
        stage="route",
        severity="fails_at_first_forward",
        read=f"--deepep-mode {case.admission.deepep_mode}",
        observed="prefill is dispatched in DeepEP's normal format",
        expected="low_latency: the only format the CuTe DSL kernel reads",
        why="from 0.5.17 the server coerces auto to low_latency and refuses normal; before, the first prefill crashes",
        source=f"sglang {case.release} layers/moe/moe_runner/flashinfer_cutedsl.py: fused function for deepep",
        remedy="--deepep-mode low_latency",
        reference="https://github.com/sgl-project/sglang/pull/29523",
        releases=versions("0.5.13", "0.5.16"),
    )


# --- runners that reach no NVFP4 kernel --------------------------------------------------------------------------------


def auto_stays_unresolved(case: Case) -> Iterator[Finding]:
    """Nothing picked a runner: the block makes a TRT-LLM runner, and its weights are laid out for CUTLASS."""
    if not case.nvfp4 or case.runner != "auto" or case.a2a != "none" or not case.blackwell:
        return
    fp4_only = "on this GPU it is picked for modelopt_fp4 only" if case.capability[0] == 12 else "no rule of this architecture picks one"
    common = {
        "id": "route.auto_unresolved",
        "stage": "route",
        "read": f"--moe-runner-backend auto, quantization {case.admission.quantization}, GPU {case.deployment.gpu.arch}",
        "expected": "a runner that the architecture's defaults picked",
        "source": f"sglang {case.release} {NVFP4}.apply",
        "remedy": f"--moe-runner-backend {'flashinfer_cutlass' if case.capability[0] == 12 else 'flashinfer_trtllm'}",
        "reference": "https://github.com/sgl-project/sglang/issues/35617"
        if case.capability[0] == 12
        else "https://github.com/sgl-project/sglang/pull/38728",
    }
    if not case.release.at_least("0.5.16"):
        yield Finding(
            severity="off_path",
            observed="auto to the end: the experts run on the slow cutlass_moe_fp4",
            why=f"{fp4_only}; what is left falls through to a slower kernel without a message",
            releases=versions("0.5.11", "0.5.15.post1"),
            **common,
        )
    elif not case.release.at_least("0.5.21"):
        yield Finding(
            severity="fails_at_first_forward",
            observed=f"NotImplementedError: Unsupported moe_runner_backend for NVFP4 MoE: {backend('flashinfer_trtllm')}. "
            "Use --moe-runner-backend flashinfer_cutlass instead.",
            why=f"{fp4_only}; the block makes a TRT-LLM runner although its weights were not prepared for it",
            releases=versions("0.5.16", "0.5.20"),
            **common,
        )
    else:
        yield Finding(
            severity="fails_at_first_forward",
            observed=f"AttributeError: '{case.layer_class}' object has no attribute 'g1_scale_c'",
            why=f"{fp4_only}; the block makes a TRT-LLM runner although its weights were not prepared for it",
            releases=versions("0.5.21"),
            **common,
        )


def runner_has_no_nvfp4_kernel(case: Case) -> Iterator[Finding]:
    """triton, deep_gemm and the like are accepted and have no NVFP4 kernel."""
    known = FUSED_ONLY | {"auto", "cutlass", "flashinfer_megamoe", "lora_marlin", "experimental_sgl_trtllm", "experimental_sgl_marlin"}
    if not case.nvfp4 or case.runner in known or case.a2a != "none" or not case.blackwell:
        return
    early = not case.release.at_least("0.5.16")
    yield Finding(
        id="route.runner_without_nvfp4_kernel",
        stage="route",
        severity="off_path" if early else "fails_at_first_forward",
        read=_block(case),
        observed="the experts run on the slow cutlass_moe_fp4"
        if early
        else f"NotImplementedError: Unsupported moe_runner_backend for NVFP4 MoE: {backend(case.runner)}. "
        "Use --moe-runner-backend flashinfer_cutlass instead.",
        expected="a runner with an NVFP4 kernel",
        why="no allowlist names this runner, so it is accepted and met again at the first forward",
        source=f"sglang {case.release} {NVFP4}.apply",
        remedy="--moe-runner-backend flashinfer_trtllm",
        releases=versions("0.5.11", "0.5.15.post1") if early else versions("0.5.16"),
    )


def kernel_is_for_another_gpu(case: Case) -> Iterator[Finding]:
    """CuTe DSL's NVFP4 MoE kernels are for SM100 and SM103; no argument check says so for SM110 and SM12x."""
    runner = case.nvfp4_runner
    if not case.nvfp4 or case.capability[0] not in (11, 12) or case.runner == "auto":
        return
    common = {
        "stage": "route",
        "read": f"GPU {case.deployment.gpu.key} ({case.deployment.gpu.arch}), {_block(case)}",
        "observed": f"{runner} NVFP4 experts on {case.deployment.gpu.arch}",
        "expected": "SM100 or SM103",
        "remedy": "--moe-runner-backend flashinfer_cutlass",
        "reference": "https://github.com/sgl-project/sglang/issues/35617",
        "releases": versions("0.5.11"),
    }
    if runner == "flashinfer_cutedsl":
        yield Finding(
            id="route.kernel_for_another_gpu",
            severity="fails_at_first_forward",
            why="the server checks no GPU for this runner; FlashInfer's kernel refuses when it is first called, in autotune or warm-up",
            source=f"flashinfer {case.release.flashinfer} fused_moe/cute_dsl/blockscaled_contiguous_gather_grouped_gemm_act_fusion.py",
            **common,
        )
    elif runner in ("flashinfer_trtllm", "flashinfer_trtllm_routed"):
        yield Finding(
            id="route.kernel_gpu_unknown",
            severity="abstained",
            why="TRT-LLM's kernels come as prebuilt SM100 and SM103 images; whether any serves this GPU was not seen",
            source=f"flashinfer {case.release.flashinfer} jit/fused_moe.py: gen_trtllm_gen_fused_moe_sm100_module",
            **common,
        )


# --- expert blocks that are not NVFP4 ---------------------------------------------------------------------------------


def other_experts_leave_the_runner(case: Case) -> Iterator[Finding]:
    """FP8 and unquantised expert blocks of an NVFP4 checkpoint run on Triton: neither refused at start nor at load."""
    if not case.nvfp4 or case.runner not in ("flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm_routed"):
        return
    strays = [(a, m) for a, m in sorted(case.kinds, key=str) if m != NVFP4_EXPERTS and case.runner_of(m) == "triton"]
    if not strays or (case.layer_class == "DeepEPMoE" and not case.deprecate_flag(strays[0][1])):
        return
    algorithm, method = strays[0]
    count = sum(case.routing.expert_blocks[kind] for kind in strays)
    common = {
        "stage": "route",
        "read": f"{_block(case)}, ep {case.ep}; {count} expert blocks {algorithm or 'unquantised'} ({method})",
        "expected": "every expert block NVFP4, or a runner that serves each kind",
        "source": f"sglang {case.release} layers/moe/token_dispatcher/standard.py: StandardDispatcher.__init__; {method}.create_moe_runner",
    }
    if case.a2a != "none":
        form = "flashinfer" if case.a2a == "flashinfer" else f"deepep_{'ll' if case.admission.deepep_mode == 'low_latency' else 'normal'}"
        yield Finding(
            id="route.other_experts_cannot_dispatch",
            severity="fails_at_first_forward",
            observed=f"AssertionError: Pre-permute function for {form} to triton is not registered",
            why="these blocks run on Triton, which cannot read what this all-to-all dispatches",
            remedy="--moe-a2a-backend none",
            releases=(case.release.version,),
            **common,
        )
    elif case.ep > 1 and not case.release.at_least("0.5.23"):
        yield Finding(
            id="route.other_experts_wrong_ids",
            severity="wrong_output",
            observed="global expert numbers reach Triton, which holds the rank's own experts only",
            why="the dispatcher skips the mapping to local experts by the server's runner, not by the layer's own",
            remedy="--ep-size 1, or SGLang 0.5.23 and newer",
            releases=versions("0.5.15", "0.5.22"),
            **common,
        )
    else:
        yield Finding(
            id="route.other_experts_on_triton",
            severity="note",
            observed="these blocks run on Triton, without a message",
            why="the source's remark that such a checkpoint is rejected at load does not hold: nothing checks it",
            remedy="",
            reference=PR_30443,
            releases=(case.release.version,),
            **common,
        )


def fp8_runner_is_missing(case: Case) -> Iterator[Finding]:
    """Fp8MoEMethod makes no runner for FlashInfer's CUTLASS and CuTe DSL up to 0.5.19."""
    if case.runner not in ("flashinfer_cutedsl", "flashinfer_cutlass") or case.release.at_least("0.5.20"):
        return
    algorithms = [algorithm for algorithm, method in case.kinds if method == "Fp8MoEMethod"]
    if not algorithms:
        return
    yield Finding(
        id="route.fp8_block_runner_missing",
        stage="route",
        severity="fails_at_first_forward",
        read=f"{_block(case)}; expert blocks {algorithms[0]} (Fp8MoEMethod)",
        observed="AttributeError: 'Fp8MoEMethod' object has no attribute 'runner'",
        expected="a runner Fp8MoEMethod knows: deep_gemm, triton, flashinfer_trtllm or flashinfer_trtllm_routed",
        why="for other runners the method makes none, and meets that at the first forward; from 0.5.20 it falls back to Triton",
        source=f"sglang {case.release} layers/quantization/fp8.py: Fp8MoEMethod.create_moe_runner",
        remedy="--moe-runner-backend flashinfer_trtllm",
        reference="https://github.com/sgl-project/sglang/issues/27968",
        releases=versions("0.5.11", "0.5.19"),
    )


# --- what the kernel leaves out ---------------------------------------------------------------------------------------


def swiglu_limit_is_dropped(case: Case) -> Iterator[Finding]:
    """A model whose SwiGLU is clamped, on a runner that never passes the clamp to its kernel."""
    if not case.nvfp4 or case.shape.swiglu_limit is None:
        return
    runner = case.nvfp4_runner
    drops = runner == "flashinfer_cutedsl" or (
        runner in ("flashinfer_cutlass", "") and case.runner in ("flashinfer_cutlass", "cutlass") and not case.release.at_least("0.5.21")
    )
    if not drops:
        return
    cutedsl = runner == "flashinfer_cutedsl"
    yield Finding(
        id="route.swiglu_limit_dropped",
        stage="route",
        severity="wrong_output",
        read=f"config.json: swiglu_limit {case.shape.swiglu_limit}; {_block(case)}",
        observed=f"the {case.runner} path of NVFP4 experts passes no limit to its kernel",
        expected=f"gate and up clamped at {case.shape.swiglu_limit}",
        why="activations beyond the limit pass unclamped, without a message",
        source=f"sglang {case.release} {NVFP4}.apply",
        remedy="--moe-runner-backend flashinfer_trtllm_routed",
        reference="https://github.com/vllm-project/vllm/pull/48929",
        releases=versions("0.5.11") if cutedsl else versions("0.5.11", "0.5.20"),
    )


def weight_only_experts_get_fp4_activations(case: Case) -> Iterator[Finding]:
    """W4A16_NVFP4 experts go through the W4A4 kernels of every runner but Marlin and CuTe DSL's own W4A16 mode."""
    if ("W4A16_NVFP4", NVFP4_EXPERTS) not in case.kinds or case.nvfp4_runner == "marlin":
        return
    mode = case.runner == "flashinfer_cutedsl" and case.a2a in ("none", "flashinfer") and case.release.at_least("0.5.19")
    if mode and case.switched("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16"):
        return
    filled = case.release.at_least("0.5.17")
    yield Finding(
        id="route.weight_only_experts_as_w4a4",
        stage="route",
        severity="off_path" if filled else "wrong_output",
        read=f"{_block(case)}; expert blocks W4A16_NVFP4",
        observed="activations are quantised to FP4 "
        + ("with an input scale of 1.0" if filled else "with an input scale that was never written: the checkpoint has none"),
        expected="BF16 activations, as the checkpoint was made for",
        why="the method class is the one of W4A4 checkpoints; only Marlin and CuTe DSL's W4A16 mode keep activations in BF16",
        source=f"sglang {case.release} {NVFP4}.create_weights and process_weights_after_loading",
        remedy="--moe-runner-backend marlin",
        reference="https://github.com/flashinfer-ai/flashinfer/issues/4249",
        releases=versions("0.5.17") if filled else versions("0.5.15", "0.5.16"),
    )


# --- heuristics that look for the name modelopt_fp4 only --------------------------------------------------------------


def nvfp4_dispatch_stays_off(case: Case) -> Iterator[Finding]:
    """FlashInfer's all-to-all sends BF16 unless the server's own quantization says modelopt_fp4 (or the hybrid key is there)."""
    if not case.nvfp4 or case.a2a != "flashinfer" or not case.release.at_least("0.5.15"):
        return
    if case.admission.quantization == "modelopt_fp4" or case.detection.nvfp4_moe_meta is not None:
        return
    chosen = case.deployment.flashinfer_a2a_dispatch_type
    if case.switched("SGLANG_MOE_NVFP4_DISPATCH") or chosen == "nvfp4":
        return
    yield Finding(
        id="route.nvfp4_dispatch_off",
        stage="route",
        severity="off_path",
        read=f"server_args.quantization {case.admission.quantization}, SGLANG_MOE_NVFP4_DISPATCH",
        observed="tokens are dispatched in BF16, about 4 times the bytes of NVFP4",
        expected="NVFP4 dispatch for NVFP4 experts",
        why="the server sets the variable only for the name modelopt_fp4 or the hybrid key; a mixed checkpoint has neither",
        source=f"sglang {case.release} {_a2a_source(case)}",
        remedy="export SGLANG_MOE_NVFP4_DISPATCH=1",
        reference="https://github.com/sgl-project/sglang/pull/30552",
        releases=versions("0.5.15"),
    )


def _a2a_source(case: Case) -> str:
    return "arg_groups/moe_hook.py: _handle_a2a_moe" if case.release.at_least("0.5.19") else "server_args.py: _handle_a2a_moe"


def fp4_all_gather_stays_off(case: Case) -> Iterator[Finding]:
    """With DP attention, FlashInfer CUTLASS gathers BF16 unless the server's own quantization says modelopt_fp4."""
    if not case.nvfp4 or case.runner != "flashinfer_cutlass" or case.a2a != "none":
        return
    if case.admission.quantization == "modelopt_fp4" or not case.deployment.enable_dp_attention:
        return
    if case.admission.attention_dp < 2 or case.ep != case.admission.attention_dp:
        return
    yield Finding(
        id="route.fp4_all_gather_off",
        stage="route",
        severity="off_path",
        read=f"server_args.quantization {case.admission.quantization}, DP attention {case.admission.attention_dp}, ep {case.ep}",
        observed="tokens are gathered in BF16, about 4 times the bytes of NVFP4",
        expected="FP4 all-gather before the experts",
        why="the test compares with the name modelopt_fp4 only",
        source=f"sglang {case.release} layers/moe/utils.py: should_use_flashinfer_cutlass_moe_fp4_allgather",
        remedy="--quantization modelopt_fp4 (the checkpoint still decides each layer; only this heuristic reads the flag)",
        reference="https://github.com/sgl-project/sglang/pull/30552",
        releases=versions("0.5.11"),
    )


# --- draft model ------------------------------------------------------------------------------------------------------


def draft_model_loses_its_quantization(case: Case) -> Iterator[Finding]:
    """With speculative decoding, the Qwen3.5 draft model of a mixed checkpoint is built unquantised from 0.5.15 to 0.5.19."""
    if case.deployment.speculative_algorithm is None:
        return
    family = family_of(case.checkpoint)
    drafts = case.routing.draft_algorithms
    if not drafts:
        return
    if family is None or not case.checkpoint.architecture.startswith("Qwen3_5"):
        yield Finding(
            id="route.draft_model_unexamined",
            stage="route",
            severity="abstained",
            read=f"--speculative-algorithm {case.deployment.speculative_algorithm}; map keys mtp.*: {', '.join(sorted(drafts))}",
            observed="the draft model's layers are named by a class this suite has no table for",
            expected="a table of the draft model's modules",
            why="whether they find their keys in the map is not known",
            source="helpers/stages/modules.py",
            remedy="",
            releases=(case.release.version,),
        )
        return
    if case.release.at_least("0.5.20") or not case.release.at_least("0.5.15"):
        return
    packed = any("4" in name for name in drafts)
    yield Finding(
        id="route.draft_quantization_dropped",
        stage="route",
        severity="fails_to_load" if packed else "wrong_output",
        read=f"--speculative-algorithm {case.deployment.speculative_algorithm}; map keys mtp.*: {', '.join(sorted(drafts))}",
        observed="the draft model is built in BF16 although its weights are quantised",
        expected="the map's algorithms for mtp.* layers",
        why="the draft class drops the quantisation config of a mixed checkpoint; the acceptance length falls, nothing is logged",
        source=f"sglang {case.release} models/qwen3_5_mtp.py: Qwen3_5ForCausalLMMTP.__init__",
        remedy="use SGLang 0.5.20 or newer",
        reference="https://github.com/sgl-project/sglang/issues/38726",
        releases=versions("0.5.15", "0.5.19"),
    )


RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    *LOAD_RULES,
    *SHAPE_RULES,
    nvfp4_needs_blackwell,
    cutlass_is_refused,
    fused_function_is_missing,
    deepep_takes_the_dead_path,
    deepep_normal_dispatch,
    auto_stays_unresolved,
    runner_has_no_nvfp4_kernel,
    kernel_is_for_another_gpu,
    other_experts_leave_the_runner,
    fp8_runner_is_missing,
    swiglu_limit_is_dropped,
    weight_only_experts_get_fp4_activations,
    nvfp4_dispatch_stays_off,
    fp4_all_gather_stays_off,
    draft_model_loses_its_quantization,
)
