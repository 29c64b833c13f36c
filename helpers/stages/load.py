"""Stage 4, as far as the configuration alone proves it: does one expert fit the runner's layout once it is cut over the ranks?

Rules that the geometry in config.json decides, and one that the tensors' names decide. No weight is read, so the stage is never
called passed.
Sources: layers/quantization/modelopt_quant.py (ModelOptNvFp4FusedMoEMethod.process_weights_after_loading),
layers/moe/moe_runner/flashinfer_cutedsl.py (interleave_w13_halves), layers/moe/fused_moe_triton/layer.py (FusedMoE.__init__),
model_loader/loader.py (_get_quantization_config). The same in every release unless a rule says otherwise.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from helpers.checkpoint import Checkpoint
from helpers.deployment import RELEASES, Release
from helpers.findings import Finding
from helpers.stages.case import Case, shape_of
from helpers.stages.modules import family_of
from helpers.stages.route import Routing

PROCESS = "layers/quantization/modelopt_quant.py: ModelOptNvFp4FusedMoEMethod.process_weights_after_loading"
ALL = tuple(release.version for release in RELEASES)

# Names of Nemotron-H's embedding that its loader ends with: the hub checkpoints' own, and SGLang's.
_NEMOTRON_EMBEDDINGS = ("backbone.embeddings.weight", "model.embeddings.weight", "model.embed_tokens.weight")

# Runners that lay NVFP4 weights out as they came from the checkpoint, cut at 64 or 128 rows.
_ROW_ALIGNED = ("flashinfer_cutedsl", "flashinfer_cutlass", "cutlass", "auto", "triton", "deep_gemm")


def gpu_is_too_old(case: Case) -> Iterator[Finding]:
    """The quantisation config's own minimum, checked before any layer is built."""
    spec = case.routing.spec
    have = case.capability[0] * 10 + case.capability[1]
    if spec is None or have >= spec.min_capability:
        return
    yield Finding(
        id="load.gpu_below_minimum",
        stage="load",
        severity="fails_to_load",
        read=f"GPU {case.deployment.gpu.key} ({case.deployment.gpu.arch})",
        observed=f"ValueError: The quantization method {case.routing.quantization} is not supported for the current GPU. "
        f"Minimum capability: {spec.min_capability}. Current capability: {have}.",
        expected=f"compute capability {spec.min_capability // 10}.{spec.min_capability % 10} or more",
        why="the loader compares the GPU with the quantisation config's minimum",
        source=f"sglang {case.release} model_loader/loader.py: _get_quantization_config",
        remedy=_old_gpu_remedy(case),
        releases=(case.release.version,),
    )


def _old_gpu_remedy(case: Case) -> str:
    if case.routing.spec.min_capability == 100 and case.capability >= (8, 0) and not case.release.at_least("0.5.13"):
        return "use SGLang 0.5.13 or newer with --moe-runner-backend marlin, or a Blackwell GPU"
    return "use a newer GPU"


def ranks_do_not_divide(case: Case) -> Iterator[Finding]:
    """tp is cut into groups of ep ranks. What is left over has no group: every rank stops before the model is built."""
    tp, ep = case.deployment.tp, case.ep
    if tp % ep == 0:
        return
    checked = case.release.at_least("0.5.21")
    yield Finding(
        id="load.ranks_do_not_divide",
        stage="load",
        severity="fails_to_load",
        read=f"--tp-size {tp}, ep {ep}",
        observed=f"ValueError: parallel topology is inconsistent: {tp} ranks in groups of {ep}"
        if checked
        else f"ValueError: of {tp} ranks in groups of {ep}, one group is to have rank {tp}, which does not exist",
        expected="ep divides tp",
        why="tp / ep is rounded down, and the product is compared with tp"
        if checked
        else "tp / ep is rounded down when the groups are made",
        source=f"sglang {case.release} "
        + ("runtime_context.py: _validate_parallel" if checked else "distributed/parallel_state.py: GroupCoordinator.__init__"),
        remedy=f"--ep-size {math.gcd(tp, ep)}",
        releases=ALL,
    )


# Where the attention class is, for model classes whose own file does not have it.
_ATTENTION = {
    "Gemma4ForConditionalGeneration": "models/gemma4_causal.py",
    "KimiK25ForConditionalGeneration": "models/deepseek_v2.py",
    "MiniMaxM3SparseForConditionalGeneration": "models/minimax_m3.py",
}
# Model classes that share the heads of their vision tower out among the same ranks, and the key of vision_config that counts them.
_VISION_HEADS = {
    "Gemma4ForConditionalGeneration": "num_attention_heads",
    "Qwen3_5MoeForConditionalGeneration": "num_heads",
    "KimiK25ForConditionalGeneration": "vt_num_attention_heads",
    "MiniMaxM3SparseForConditionalGeneration": "num_attention_heads",
}
_MIXER = "layers/attention/mamba/mamba.py: MambaMixer2.__init__"
_DIVIDE = "distributed/utils.py: ensure_divisibility, from "


def _attention_ranks(case: Case) -> int:
    """Ranks that share one attention layer. Gemma 4's class knows no attention data parallelism."""
    if case.checkpoint.architecture.startswith("Gemma4"):
        return case.deployment.tp
    return max(1, case.deployment.tp // max(1, case.admission.attention_dp))


def _not_shared_out(case: Case) -> Iterator[tuple[str, int, int, str]]:
    """(key of config.json, its number, ranks, file: function that stops) for each number that the ranks do not divide.

    Up to 0.5.13 Mamba's heads are shared out among all ranks, under attention data parallelism too.
    """
    ranks = _attention_ranks(case)
    of_mamba = ranks if case.release.at_least("0.5.14") else case.deployment.tp
    text, architecture = case.checkpoint.text_config, case.checkpoint.architecture
    file = _ATTENTION.get(architecture, family_of(case.checkpoint).file) + ": __init__ of the attention class"
    vision = case.checkpoint.config.get("vision_config")
    counts = {name: text.get(name) for name in ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads")}
    counts["vision_config.num_heads"] = vision.get(_VISION_HEADS.get(architecture)) if isinstance(vision, dict) else None
    if architecture == "NemotronHForCausalLM":
        counts["mamba_num_heads"] = text.get("mamba_num_heads")
        counts["mamba_n_groups"] = text.get("mamba_n_groups", 8)  # the default of SGLang's own config class; n_groups is not read
    places = {
        "num_attention_heads": _DIVIDE + file if architecture == "DeepseekV4ForCausalLM" else file,
        "num_key_value_heads": file,
        "linear_num_key_heads": _DIVIDE + "layers/linear.py",
        "mamba_num_heads": _MIXER if of_mamba != ranks else _DIVIDE + "configs/mamba_utils.py",
        "mamba_n_groups": _MIXER,
        "vision_config.num_heads": _DIVIDE + "layers/attention/vision.py: VisionAttention.__init__",
    }
    among = {key: of_mamba if key.startswith("mamba") else ranks for key in counts}
    uneven = {key: count for key, count in counts.items() if type(count) is int and count > 0 and count % among[key]}
    few = uneven.get("num_key_value_heads")
    if few and (ranks % few == 0 or "kv_lora_rank" in text or "num_attention_heads" in uneven):
        del uneven["num_key_value_heads"]  # held by several ranks each, not shared out at all, or never looked at
    for key, count in uneven.items():
        yield key, count, among[key], places[key]


def heads_do_not_divide(case: Case) -> Iterator[Finding]:
    """Heads are shared out among the ranks of one attention group; the model classes assert that this comes out even."""
    if family_of(case.checkpoint) is None:
        return
    for key, count, ranks, place in _not_shared_out(case):
        yield Finding(
            id="load.heads_do_not_divide",
            stage="load",
            severity="fails_to_load",
            read=f"config.json: {key} {count}; --tp-size {case.deployment.tp}",
            observed=f"AssertionError: {count} is not divisible by {ranks}",
            expected="as many on every rank",
            why="heads are shared out among the ranks of tensor parallelism (of one group of them, under attention data parallelism)",
            source=f"sglang {case.release} {place}",
            remedy=f"--tp-size {math.gcd(count, ranks)}",
            releases=ALL,
        )


def experts_do_not_divide(case: Case) -> Iterator[Finding]:
    """FusedMoE asserts that ranks divide experts and the intermediate size."""
    geometry = case.shape.geometry
    if geometry is None:
        return
    if geometry.experts % case.ep:
        yield _not_divisible(case, "experts", geometry.experts, "ep", case.ep)
    elif geometry.intermediate % case.moe_tp:
        yield _not_divisible(case, "intermediate size of an expert", geometry.intermediate, "tp / ep", case.moe_tp)


# MoE blocks that want at least as many experts as ranks, whatever ep is: architecture -> where its block is.
_EXPERTS_FOR_ALL = {
    "DeepseekV3ForCausalLM": "models/deepseek_v2.py",
    "DeepseekV32ForCausalLM": "models/deepseek_v2.py",
    "DeepseekV4ForCausalLM": "models/deepseek_v2.py",
    "GlmMoeDsaForCausalLM": "models/deepseek_v2.py",
    "KimiK25ForConditionalGeneration": "models/deepseek_v2.py",
    "MiniMaxM2ForCausalLM": "models/minimax_m2.py",
    "MiniMaxM3SparseForConditionalGeneration": "models/minimax_m3.py",
    "Qwen3MoeForCausalLM": "models/qwen3_moe.py",
    "Qwen3_5MoeForConditionalGeneration": "models/qwen2_moe.py",
}


def more_ranks_than_experts(case: Case) -> Iterator[Finding]:
    """Some model classes refuse it, although with ep 1 every rank would hold a slice of each expert."""
    geometry, tp = case.shape.geometry, case.deployment.tp
    place = _EXPERTS_FOR_ALL.get(case.checkpoint.architecture)
    if geometry is None or place is None or tp <= geometry.experts:
        return
    yield Finding(
        id="load.more_ranks_than_experts",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: experts {geometry.experts}; --tp-size {tp}",
        observed=f"ValueError: Tensor parallel size {tp} is greater than the number of experts {geometry.experts}.",
        expected="at most as many ranks as experts",
        why="the MoE block compares them when it is built",
        source=f"sglang {case.release} {place}: __init__ of the MoE block",
        remedy=f"--tp-size {geometry.experts}",
        releases=ALL,
    )


def _not_divisible(case: Case, what: str, size: int, ranks: str, count: int) -> Finding:
    return Finding(
        id="load.experts_not_divisible",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: {what} {size}; {ranks} {count}",
        observed=f"AssertionError: {size} is not a multiple of {count}",
        expected=f"{ranks} divides the {what}",
        why="every rank holds an equal share",
        source=f"sglang {case.release} layers/moe/fused_moe_triton/layer.py: FusedMoE.__init__",
        remedy=f"choose {ranks} from {', '.join(str(n) for n in range(1, 65) if size % n == 0)}",
        releases=ALL,
    )


def gated_halves_need_64_rows(case: Case) -> Iterator[Finding]:
    """Gate and up lie in one tensor: each half must end on a tile border, I_local % 64, for every runner but TRT-LLM and Marlin."""
    local = _local_intermediate(case)
    runner = _layout(case)
    if local is None or runner not in _ROW_ALIGNED or not case.shape.geometry.gated or local % 64 == 0:
        return
    interleaved = runner == "flashinfer_cutedsl" and not case.cutedsl_v1
    message = (
        f"ValueError: Expected split dim divisible by group_size=64, got {local}."
        if interleaved
        else "AssertionError: The intermediate size required padding, but padding is also implemented for gated activations"
    )
    yield Finding(
        id="load.gated_rows_not_aligned",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: intermediate size {case.shape.geometry.intermediate}; tp {case.deployment.tp}, ep {case.ep}",
        observed=message,
        expected=f"a multiple of 64 rows a rank, not {local}",
        why="CuTe DSL interleaves gate and up in groups of 64 rows"
        if interleaved
        else "block scales are padded to 128 rows over gate and up together, and padding in the middle is not implemented",
        source=f"sglang {case.release} {PROCESS}",
        remedy=_alignment_remedy(case),
        reference="https://github.com/sgl-project/sglang/pull/38728",
        releases=ALL,
    )


def _alignment_remedy(case: Case) -> str:
    """The first tp / ep split whose share is aligned, else TRT-LLM, which pads."""
    geometry = case.shape.geometry
    fits = [ep for ep in (case.deployment.tp,) if ep > case.ep and geometry.experts % ep == 0 and geometry.intermediate % 64 == 0]
    return f"--ep-size {fits[0]}" if fits else "--moe-runner-backend flashinfer_trtllm"


def scale_groups_are_cut(case: Case) -> Iterator[Finding]:
    """A rank's share must hold whole scale groups, or its scales start inside a group."""
    local = _local_intermediate(case)
    runner = _layout(case)
    group = case.group_size or 16
    if local is None or runner not in _ROW_ALIGNED or local % group == 0 or case.moe_tp == 1:
        return
    if case.shape.geometry.gated:
        return  # already stopped by gated_halves_need_64_rows
    yield Finding(
        id="load.scale_groups_cut",
        stage="load",
        severity="wrong_output",
        read=f"config.json: intermediate size {case.shape.geometry.intermediate}; tp {case.deployment.tp}, ep {case.ep}",
        observed=f"{local} columns of down_proj a rank, in scale groups of {group}",
        expected=f"a multiple of {group}",
        why="every rank takes the same whole number of scales, so from the second rank on they belong to other columns",
        source=f"sglang {case.release} layers/moe/fused_moe_triton/layer.py: FusedMoE._load_w2",
        remedy="--moe-runner-backend flashinfer_trtllm" if case.deployment.tp == case.ep else f"--ep-size {case.deployment.tp}",
        releases=(case.release.version,),
    )


def fp8_blocks_are_cut(case: Case) -> Iterator[Finding]:
    """Block-FP8 experts: a rank's rows must be whole scale blocks. MXFP8's blocks have one row, so nothing can be cut."""
    block = case.block
    local = _local_intermediate(case)
    algorithms = [algorithm for algorithm, method in case.kinds if method == "Fp8MoEMethod" and algorithm != "MXFP8"]
    if not algorithms or block is None or local is None or local % block[0] == 0:
        return
    yield Finding(
        id="load.fp8_blocks_cut",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: intermediate size {case.shape.geometry.intermediate}; tp {case.deployment.tp}, ep {case.ep}",
        observed=f"ValueError: The output_size of gate's and up's weight = {local} is not divisible by weight quantization "
        f"block_n = {block[0]}.",
        expected=f"a multiple of {block[0]} rows a rank",
        why=f"expert blocks {algorithms[0]} have one scale for each {block[0]} rows",
        source=f"sglang {case.release} layers/quantization/fp8.py: Fp8MoEMethod.create_weights",
        remedy=f"--ep-size {case.deployment.tp}" if case.deployment.tp > case.ep else "export these experts in another format",
        releases=ALL,
    )


def group_size_is_not_16(case: Case) -> Iterator[Finding]:
    """Every NVFP4 kernel has 16 values a scale built in."""
    group = case.group_size
    if not case.nvfp4 or group in (None, 16):
        return
    stopped = _stopped_by_group_size(case, group)
    yield Finding(
        id="load.group_size_not_16",
        stage="load",
        severity="fails_to_load" if stopped else "wrong_output",
        read=f"{case.detection.copy}: group_size {group}",
        observed=stopped or str(group),
        expected="16",
        why="block scales are laid out for groups of 16: the element count does not fit"
        if stopped
        else "the kernel reads one scale for each 16 values whatever the checkpoint says",
        source=f"sglang {case.release} {PROCESS}",
        remedy="quantise again with group_size 16",
        releases=(case.release.version,),
    )


def _stopped_by_group_size(case: Case, group: int) -> str:
    """The exception of a runner that looks, "" of the others. FlashInfer's own words for CuTe DSL: cute_dsl/utils.py."""
    runner, geometry, local = _layout(case), case.shape.geometry, _local_intermediate(case)
    if runner == "marlin":
        return f"ValueError: NVFP4 Marlin MoE requires group_size=16, got {group}."
    if geometry is None or local is None:
        return ""
    hidden = geometry.expert_hidden
    if runner == "flashinfer_trtllm_routed":
        experts = geometry.experts // case.ep
        rows = trtllm_width(local, geometry.gated, case.release) * (2 if geometry.gated else 1)
        shape = [experts, rows, hidden // 16]
        return f"RuntimeError: shape '{shape}' is invalid for input of size {experts * rows * (hidden // group)}"
    if runner == "flashinfer_trtllm":
        return f"AssertionError: Expected w13_weight_scale.dim(2) == {hidden // 16}, got {hidden // group}"
    if runner == "flashinfer_cutedsl" and not case.cutedsl_v1:
        experts, rows = geometry.experts // case.ep, local * (2 if geometry.gated else 1)
        there, wanted = (experts * _up(rows, 128) * _up(hidden // size, 4) for size in (group, 16))
        counts = f"{there} elements, expected {wanted} for m={rows}, k={hidden}, num_groups={experts}"
        return f"ValueError: Scale factor tensor has {counts}" if there != wanted else ""
    return ""


def trtllm_width(width: int, gated: bool, release: Release, nvfp4: bool = True) -> int:
    """A rank's width of an expert as TRT-LLM pads it: FusedMoE.__init__; NVFP4 from 0.5.23 in create_weights."""
    return _up(width, 64 if nvfp4 and gated and release.at_least("0.5.23") else 128)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def input_scales_are_not_sliced(case: Case) -> Iterator[Finding]:
    """Runners without an NVFP4 path of their own multiply scales of all experts with weights of the rank's."""
    geometry = case.shape.geometry
    if not case.nvfp4 or case.ep == 1 or geometry is None or _layout(case) not in ("auto", "cutlass", "triton", "deep_gemm"):
        return
    everyone = geometry.experts
    yield Finding(
        id="load.input_scales_not_sliced",
        stage="load",
        severity="fails_to_load",
        read=f"--moe-runner-backend {case.runner}, ep {case.ep}",
        observed=f"RuntimeError: The size of tensor a ({everyone}) must match the size of tensor b ({everyone // case.ep}) "
        "at non-singleton dimension 0",
        expected="a runner that takes the rank's share of the input scales",
        why="only FlashInfer's runners and Marlin handle them; what is left keeps one input scale for each expert of the model",
        source=f"sglang {case.release} {PROCESS}",
        remedy="--moe-runner-backend flashinfer_trtllm",
        reference="https://github.com/sgl-project/sglang/issues/36597",
        releases=(case.release.version,),
    )


def marlin_tiles_do_not_fit(case: Case) -> Iterator[Finding]:
    """Marlin repacks weights in tiles of 16 columns and 64 rows; experts with a gate are not padded to them, others are to 128 rows."""
    local, geometry = _local_intermediate(case), case.shape.geometry
    if _layout(case) != "marlin" or local is None:
        return
    if not geometry.gated:
        local = _up(local, 128)
    rows = local * (2 if geometry.gated else 1)
    sizes = (("k", geometry.expert_hidden, 16), ("n", rows, 64), ("k", local, 16), ("n", geometry.expert_hidden, 64))
    wrong = next(((name, size, tile) for name, size, tile in sizes if size % tile), None)
    if wrong is None:
        return
    name, size, tile = wrong
    yield Finding(
        id="load.marlin_tiles",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: intermediate size {geometry.intermediate}; tp {case.deployment.tp}, ep {case.ep}; runner marlin",
        observed=f"RuntimeError: size_{name} = {size} is not divisible by tile_{name}_size = {tile}",
        expected=f"a multiple of {tile}",
        why="Marlin repacks weights in tiles of 16 columns and 64 rows, and gate and up are not padded to them",
        source=f"sglang {case.release} layers/quantization/marlin_utils_fp4.py: prepare_moe_nvfp4_layer_for_marlin; gptq_marlin_repack",
        remedy="--moe-runner-backend flashinfer_trtllm, which pads",
        releases=ALL,
    )


@lru_cache(maxsize=256)
def _embedding_read_by_nemotron(checkpoint: Checkpoint) -> bool:
    return any(name in checkpoint.tensors for name in _NEMOTRON_EMBEDDINGS)


def embedding_is_not_loaded(case: Case) -> Iterator[Finding]:
    """transformers 5.12 saves Nemotron-H's embedding under a name that SGLang's loader does not know: a warning, and it is left out."""
    if case.checkpoint.architecture != "NemotronHForCausalLM" or case.checkpoint.tensors is None:
        return
    if _embedding_read_by_nemotron(case.checkpoint):
        return
    yield Finding(
        id="load.embedding_not_loaded",
        stage="load",
        severity="wrong_output",
        read="the safetensors headers",
        observed=f"no tensor named {' or '.join(_NEMOTRON_EMBEDDINGS)}",
        expected="the embedding under a name that the model class reads",
        why="the loader renames backbone to model and embeddings to embed_tokens, warns of any other name and goes on: the embedding "
        "keeps uninitialised memory",
        source=f"sglang {case.release} models/nemotron_h.py: NemotronHForCausalLM.load_weights",
        remedy="rename backbone.embedding.weight to backbone.embeddings.weight in the safetensors files",
        releases=ALL,
    )


def mamba_groups_are_not_read(case: Case) -> Iterator[Finding]:
    """SGLang's Nemotron-H configuration calls them mamba_n_groups; transformers writes n_groups, which nothing reads."""
    text = case.checkpoint.text_config
    written, read = text.get("n_groups"), text.get("mamba_n_groups", 8)
    if case.checkpoint.architecture != "NemotronHForCausalLM" or type(written) is not int or written == read:
        return
    yield Finding(
        id="load.mamba_groups_not_read",
        stage="load",
        severity="fails_to_load",
        read=f"config.json: n_groups {written}",
        observed=f"RuntimeError: the Mamba layers are built with {read} groups, and the tensors of {written} do not fill them",
        expected=f"mamba_n_groups {written}",
        why="the configuration class reads mamba_n_groups, which is 8 where it is not given; transformers writes n_groups",
        source=f"sglang {case.release} configs/nemotron_h.py: NemotronHConfig; models/nemotron_h.py: NemotronHMambaDecoderLayer",
        remedy=f'add "mamba_n_groups": {written} to config.json',
        releases=ALL,
    )


def fused_experts_are_not_loaded(case: Case) -> Iterator[Finding]:
    """NVFP4 experts in one tensor a projection: one model class hands them to a loader of single experts, another passes them over."""
    architecture = case.checkpoint.architecture
    if not case.nvfp4 or architecture not in _FUSED or not _has_fused_experts(case.checkpoint):
        return
    severity, observed, why, source = _FUSED[architecture]
    yield Finding(
        id="load.fused_experts",
        stage="load",
        severity=severity,
        read="the safetensors headers: all experts of a projection in one tensor",
        observed=observed,
        expected="experts.0.gate_proj.weight and so on",
        why=why,
        source=f"sglang {case.release} {source}",
        remedy="split the experts' tensors in the safetensors files",
        releases=(case.release.version,),
    )


_FUSED = {
    "GptOssForCausalLM": (
        "fails_to_load",
        "ValueError: Expected 2D tensors, got expert_data shape and loaded_weight shape with three dimensions",
        "ModelOpt's matrices are loaded expert by expert, and the model class hands over all of them",
        "layers/moe/fused_moe_triton/layer.py: FusedMoE._load_w2",
    ),
    "Llama4ForCausalLM": (
        "wrong_output",
        "none of the experts' tensors is read, without a message: the experts keep uninitialised memory",
        "the text-only class reads weights as Llama 3 does; Llama4ForConditionalGeneration knows the experts' names",
        "models/llama4.py: Llama4ForCausalLM, whose load_weights is LlamaForCausalLM's",
    ),
}


@lru_cache(maxsize=256)
def _has_fused_experts(checkpoint: Checkpoint) -> bool:
    return checkpoint.tensors is not None and any(name.endswith(".experts.down_proj") for name in checkpoint.tensors)


# Model classes of models/deepseek_v2.py, whose loader looks up what it does not find.
_DEEPSEEK = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


@lru_cache(maxsize=256)
def experts_built_dense(checkpoint: Checkpoint, routing: Routing) -> tuple[Finding, ...]:
    """Layers with experts in the checkpoint that the model class builds without any."""
    geometry = shape_of(checkpoint).geometry
    if checkpoint.architecture not in _DEEPSEEK or geometry is None or checkpoint.tensors is None:
        return ()
    built = {module.layer for module in routing.modules if module.kind == "experts"}
    dense = [layer for layer in geometry.moe_layers if layer not in built]
    if not dense:
        return ()
    first = checkpoint.text_config.get("first_k_dense_replace")
    return (
        Finding(
            id="load.experts_built_dense",
            stage="load",
            severity="fails_to_load",
            read=f"config.json: mlp_layer_types, first_k_dense_replace {first}",
            observed=f"KeyError: a tensor of layer {dense[0]}, which is built without experts",
            expected=f"first_k_dense_replace {dense[0]}",
            why="transformers goes by mlp_layer_types, SGLang's class by first_k_dense_replace, and the two say different things",
            source=f"sglang {routing.release} models/deepseek_v2.py: DeepseekV2DecoderLayer._is_layer_sparse",
            remedy=f"set first_k_dense_replace to {dense[0]} in config.json",
            releases=ALL,
        ),
    )


def geometry_is_missing(case: Case) -> Iterator[Finding]:
    """Without dimensions the rules above cannot be asked."""
    if case.nvfp4 and case.shape.geometry is None:
        yield Finding(
            id="load.geometry_unknown",
            stage="load",
            severity="abstained",
            read="config.json",
            observed=case.shape.problem,
            expected="number and intermediate size of the experts",
            why="alignment and divisibility of the experts' weights cannot be asked",
            source="helpers/checkpoint/geometry.py",
            remedy="restore the model's own config.json",
            releases=(case.release.version,),
        )


def _layout(case: Case) -> str:
    """The runner the NVFP4 weights are laid out for: the server's, "marlin" where auto means it, "" without NVFP4 blocks."""
    if not case.nvfp4 or (not case.blackwell and case.runner != "marlin" and not _auto_is_marlin(case)):
        return ""
    return "marlin" if _auto_is_marlin(case) else case.runner


def _auto_is_marlin(case: Case) -> bool:
    return case.runner == "auto" and case.nvfp4_runner == "marlin"


def _local_intermediate(case: Case) -> int | None:
    geometry = case.shape.geometry
    if geometry is None or geometry.experts % case.ep or geometry.intermediate % case.moe_tp:
        return None
    return geometry.intermediate // case.moe_tp


# What ends process_weights_after_loading() of an NVFP4 block, in its order.
PROCESS_RULES = (
    input_scales_are_not_sliced,
    gated_halves_need_64_rows,
    group_size_is_not_16,
    marlin_tiles_do_not_fit,
)

LOAD_RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    gpu_is_too_old,
    ranks_do_not_divide,
    heads_do_not_divide,
    more_ranks_than_experts,
    experts_do_not_divide,
    gated_halves_need_64_rows,
    scale_groups_are_cut,
    fp8_blocks_are_cut,
    group_size_is_not_16,
    input_scales_are_not_sliced,
    marlin_tiles_do_not_fit,
    embedding_is_not_loaded,
    mamba_groups_are_not_read,
    fused_experts_are_not_loaded,
    geometry_is_missing,
)
