"""The argument rules: every refusal with its text, every rewrite, and what each release changed.

The differential tests hold the same rules equal to real releases; these say what the rules are.
"""

import ast
from dataclasses import replace

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.deployment import GPUS, RELEASES, deployment, release
from helpers.findings import SEVERITIES
from helpers.paths import ROOT
from helpers.stages.admission.allowlists import ALLOWLISTS, allowlist
from helpers.stages.admission.remedies import ADVICE
from helpers.stages.admission.sources import SOURCES, where
from helpers.stages.admit import admit
from helpers.stages.detect import detect

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
HYBRID = {"quant_method": "fp8", "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16, "ignore": []}
FP8 = {"quant_method": "fp8"}


def mixed(algorithm="NVFP4", name="model.layers.0.mlp.experts"):
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {name: {"quant_algo": algorithm}},
        "ignore": [],
    }


def checkpoint(architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", quant=None, file=None, **config):
    config = {"architectures": [architecture], "model_type": model_type} | config
    if quant is not None:
        config["quantization_config"] = quant
    return from_configs("made for a test", config, None if file is None else {"quantization": file})


def ask(made, **values):
    asked = deployment(**values)
    return admit(made, detect(made, asked.release), asked)


QWEN_MIXED, QWEN_NVFP4, QWEN_BF16 = checkpoint(quant=mixed()), checkpoint(quant=NVFP4), checkpoint()
NEMOTRON = {"architecture": "NemotronHForCausalLM", "model_type": "nemotron_h"}
V4 = checkpoint("DeepseekV4ForCausalLM", "deepseek_v4", HYBRID)
GPT_OSS, DEEPSEEK_BF16 = checkpoint("GptOssForCausalLM", "gpt_oss"), checkpoint("DeepseekV3ForCausalLM", "deepseek_v3")
EAGLE_TREE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 8,
}
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"format": "mxfp4-pack-quantized"}}}
KIMI_K3 = checkpoint("KimiK3ForConditionalGeneration", "kimi_k3", text_config={"quantization_config": PACKED})

# (rule, checkpoint, deployment, exception, beginning of the text)
REFUSALS = [
    (
        "config.model_type",
        checkpoint(model_type="minimax_m3_vl"),
        {"sglang": "0.5.14"},
        "ValueError",
        "The checkpoint you are trying to load",
    ),
    ("config.model_type", checkpoint(model_type=None), {}, "ValueError", "Unrecognized model in made for a test."),
    (
        "config.model_type",
        checkpoint(model_type="minimax_m3_vl", auto_map={"AutoConfig": "configuration.Config"}),
        {"sglang": "0.5.14"},
        "ValueError",
        "The repository made for a test contains custom code",
    ),
    (
        "layer_types",
        checkpoint("GlmMoeDsaForCausalLM", "glm_moe_dsa", NVFP4, layer_types=["deepseek_sparse_attention"]),
        {"sglang": "0.5.14"},
        "StrictDataclassClassValidationError",
        "Class validation error for validator 'validate_layer_type'",
    ),
    (
        "model_config",
        checkpoint(quant=FP8),
        {"quantization": "awq"},
        "ValueError",
        "Quantization method specified in the model config (fp8)",
    ),
    ("parallel.dp", QWEN_NVFP4, {"tp": 8, "dp": 3, "enable_dp_attention": True}, "AssertionError", ""),
    (
        "kernel.quantization",
        QWEN_MIXED,
        {"sglang": "0.5.15", "runner": "flashinfer_cutedsl"},
        "AssertionError",
        "Invalid quantization 'modelopt_mixed'. \n",
    ),
    ("kernel.ep", QWEN_NVFP4, {"runner": "flashinfer_cutlass", "tp": 8, "ep": 2}, "AssertionError", "The expert parallel size must be 1"),
    ("kernel.fp8_ep", checkpoint(quant=FP8), {"runner": "cutlass", "tp": 8, "ep": 8}, "AssertionError", "FP8/MXFP8 Cutlass MoE"),
    (
        "kernel.a2a",
        QWEN_NVFP4,
        {"runner": "flashinfer_cutedsl", "a2a": "mori"},
        "AssertionError",
        "flashinfer_cutedsl supports moe_a2a_backend='none', 'deepep', or 'flashinfer', got 'mori'.",
    ),
    (
        "kernel.a2a",
        QWEN_NVFP4,
        {"sglang": "0.5.12", "runner": "flashinfer_cutedsl", "a2a": "flashinfer"},
        "AssertionError",
        "flashinfer_cutedsl supports moe_a2a_backend='none' (standard path)",
    ),
    (
        "kernel.per_token",
        QWEN_NVFP4,
        {"runner": "flashinfer_cutedsl", "a2a": "deepep", "env": "SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION=1"},
        "ValueError",
        "flashinfer_cutedsl per-token NVFP4 activation",
    ),
    (
        "kernel_constraints.online_gpu",
        QWEN_BF16,
        {"quantization": "nvfp4_online", "gpu": "H200"},
        "ValueError",
        "--quantization nvfp4_online is supported only on",
    ),
    (
        "kernel_constraints.online_runner",
        QWEN_BF16,
        {"quantization": "nvfp4_online", "runner": "marlin"},
        "ValueError",
        "--quantization nvfp4_online supports only",
    ),
    (
        "cutlass_variable",
        QWEN_NVFP4,
        {"sglang": "0.5.17", "env": "SGLANG_CUTLASS_MOE=1"},
        "AssertionError",
        "cutlass MoE is only supported with fp8/mxfp8",
    ),
    (
        "qwen3.w4a16",
        checkpoint(quant=mixed("W4A16_NVFP4")),
        {"runner": "flashinfer_trtllm"},
        "ValueError",
        "W4A16_NVFP4 MoE layers require",
    ),
    ("nemotron_h.activation", checkpoint(**NEMOTRON, quant=NVFP4, mlp_hidden_act="silu"), {}, "AssertionError", ""),
    (
        "nemotron_h.no_inline_map",
        checkpoint(**NEMOTRON, file=mixed(), mlp_hidden_act="relu2"),
        {"sglang": "0.5.18"},
        "AttributeError",
        "'NemotronHConfig' object has no attribute 'quantization_config'",
    ),
    (
        "nemotron_h.w4a16_a2a",
        checkpoint(**NEMOTRON, quant=mixed("W4A16_NVFP4", "backbone.layers.1.mixer.experts.0.up_proj"), mlp_hidden_act="relu2"),
        {"a2a": "deepep"},
        "ValueError",
        "W4A16_NVFP4 MoE layers require --moe-a2a-backend=none.",
    ),
    (
        "nemotron_h.w4a16_runner",
        checkpoint(**NEMOTRON, quant=mixed("W4A16_NVFP4", "backbone.layers.1.mixer.experts.0.up_proj"), mlp_hidden_act="relu2"),
        {"runner": "triton"},
        "ValueError",
        "W4A16_NVFP4 MoE layers require --moe-runner-backend=marlin.",
    ),
    (
        "family.triton_kernel_ep",
        checkpoint("GptOssForCausalLM", "gpt_oss"),
        {"runner": "triton_kernel", "tp": 2, "ep": 2},
        "AssertionError",
        "Triton kernel MoE",
    ),
    ("a2a.dispatch_flag", QWEN_NVFP4, {"flashinfer_a2a_dispatch_type": "bf16"}, "ValueError", "--flashinfer-a2a-dispatch-type requires"),
    (
        "a2a.deepep_mode",
        QWEN_NVFP4,
        {"runner": "flashinfer_cutedsl", "a2a": "deepep", "deepep_mode": "normal"},
        "ValueError",
        "flashinfer_cutedsl FP4 MoE only supports",
    ),
    ("a2a.deepep_v2_runner", QWEN_NVFP4, {"a2a": "deepep_v2", "runner": "triton"}, "ValueError", "DeepEP v2 MoE currently supports only"),
    (
        "a2a.attention_dp",
        QWEN_NVFP4,
        {"sglang": "0.5.16", "a2a": "flashinfer", "runner": "flashinfer_cutlass", "tp": 8},
        "AssertionError",
        "Flashinfer MoE A2A is only supported with dp_size == tp_size and --enable-dp-attention",
    ),
    (
        "a2a.attention_dp",
        QWEN_NVFP4,
        {"a2a": "flashinfer", "runner": "flashinfer_cutlass", "tp": 8},
        "AssertionError",
        "Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size",
    ),
    (
        "a2a.w4a16_dispatch",
        QWEN_NVFP4,
        {
            "a2a": "flashinfer",
            "runner": "flashinfer_cutedsl",
            "tp": 8,
            "dp": 8,
            "enable_dp_attention": True,
            "env": "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1,SGLANG_MOE_NVFP4_DISPATCH=1",
        },
        "ValueError",
        "CuTe DSL NVFP4 W4A16 requires BF16",
    ),
    (
        "a2a.flashinfer_runner",
        QWEN_NVFP4,
        {"a2a": "flashinfer", "runner": "triton", "tp": 8, "dp": 8, "enable_dp_attention": True},
        "AssertionError",
        "FlashInfer MoE A2A is supported with",
    ),
    (
        "a2a.megamoe_runner",
        QWEN_NVFP4,
        {"a2a": "flashinfer_megamoe", "runner": "triton", "tp": 8, "dp": 8, "enable_dp_attention": True},
        "AssertionError",
        "FlashInfer MegaMOE a2a backend requires",
    ),
    (
        "a2a.megamoe_gpu",
        QWEN_NVFP4,
        {"a2a": "flashinfer_megamoe", "quantization": "modelopt_fp4", "gpu": "H200", "tp": 8, "dp": 8, "enable_dp_attention": True},
        "ValueError",
        "FlashInfer MegaMOE currently requires an SM100",
    ),
    (
        "a2a.mori_tokens",
        QWEN_NVFP4,
        {"a2a": "mori"},
        "AssertionError",
        "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 4096) must be >=",
    ),
    (
        "a2a.pplx_mode",
        QWEN_NVFP4,
        {"a2a": "pplx", "deepep_mode": "normal"},
        "ValueError",
        "moe_a2a_backend='pplx' only supports low-latency",
    ),
    ("a2a.pplx_dp", QWEN_NVFP4, {"a2a": "pplx"}, "AssertionError", "moe_a2a_backend='pplx' requires attention DP"),
    (
        "a2a.pplx_runner",
        QWEN_NVFP4,
        {"a2a": "pplx", "runner": "triton", "tp": 2, "dp": 2, "enable_dp_attention": True},
        "AssertionError",
        "moe_a2a_backend='pplx' is only supported with",
    ),
    (
        "a2a.pplx_tokens",
        QWEN_NVFP4,
        {"a2a": "pplx", "tp": 2, "dp": 2, "enable_dp_attention": True},
        "AssertionError",
        "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 128)",
    ),
    (
        "dispatch_type.variable",
        QWEN_NVFP4,
        {
            "a2a": "flashinfer",
            "runner": "flashinfer_cutlass",
            "tp": 2,
            "dp": 2,
            "enable_dp_attention": True,
            "flashinfer_a2a_dispatch_type": "bf16",
            "env": "SGLANG_MOE_NVFP4_DISPATCH=0",
        },
        "ValueError",
        "SGLANG_MOE_NVFP4_DISPATCH cannot be set together",
    ),
    (
        "dispatch_type.quantization",
        QWEN_MIXED,
        {
            "a2a": "flashinfer",
            "runner": "flashinfer_cutlass",
            "tp": 2,
            "dp": 2,
            "enable_dp_attention": True,
            "flashinfer_a2a_dispatch_type": "nvfp4",
        },
        "ValueError",
        "--flashinfer-a2a-dispatch-type nvfp4 requires",
    ),
    (
        "dispatch_type.runner",
        QWEN_BF16,
        {
            "quantization": "mxfp8",
            "a2a": "flashinfer",
            "runner": "cutlass",
            "tp": 2,
            "dp": 2,
            "enable_dp_attention": True,
            "flashinfer_a2a_dispatch_type": "auto",
        },
        "ValueError",
        "--flashinfer-a2a-dispatch-type mxfp8 requires --moe-runner-backend",
    ),
    (
        "deepep_v2_architecture",
        checkpoint("LlamaForCausalLM", "llama"),
        {"a2a": "deepep_v2"},
        "ValueError",
        "DeepEP v2 MoE is not validated for 'LlamaForCausalLM'",
    ),
    ("deepep_v2_budget", QWEN_NVFP4, {"a2a": "deepep_v2"}, "ValueError", "DeepEP v2 per-rank prefill budget exceeds"),
    ("megamoe_gpu", QWEN_NVFP4, {"a2a": "megamoe", "gpu": "A100"}, "ValueError", "--moe-a2a-backend megamoe needs a CUDA SM90 GPU"),
    (
        "megamoe_model.architecture",
        checkpoint("LlamaForCausalLM", "llama"),
        {"a2a": "flashinfer_megamoe"},
        "ValueError",
        "FlashInfer MegaMOE is not validated",
    ),
    ("megamoe_model.quantization", QWEN_MIXED, {"a2a": "flashinfer_megamoe"}, "ValueError", "FlashInfer MegaMOE currently supports only"),
    ("megamoe_budget", QWEN_NVFP4, {"a2a": "megamoe"}, "ValueError", "Qwen3MoeForCausalLM with MegaMoE requires"),
    ("megamoe_v4_budget", V4, {"sglang": "0.5.17", "a2a": "megamoe"}, "ValueError", "DeepSeekV4 with MegaMoE requires"),
    (
        "marlin_lora",
        QWEN_NVFP4,
        {"runner": "experimental_sgl_marlin", "a2a": "deepep", "tp": 2},
        "ValueError",
        "experimental_sgl_marlin EP requires",
    ),
    ("lora_runner", QWEN_NVFP4, {"runner": "lora_triton"}, "ValueError", "--moe-runner-backend lora_triton requires --enable-lora"),
    ("kimi_k3.kernels", KIMI_K3, {"sglang": "0.5.17"}, "RuntimeError", "Kimi-K3 on Blackwell with moe_runner_backend='auto'"),
    (
        "lora_runner.draft",
        QWEN_NVFP4,
        {"speculative_algorithm": "EAGLE", "speculative_moe_runner_backend": "lora_triton"},
        "ValueError",
        "--speculative-moe-runner-backend lora_triton is not supported",
    ),
    (
        "deepseek_v4_speculation.algorithm",
        V4,
        {"sglang": "0.5.15", "speculative_algorithm": "EAGLE3"},
        "AssertionError",
        "Only EAGLE speculative algorithm is supported for DeepseekV4ForCausalLM",
    ),
    (
        "deepseek_v4_speculation.algorithm",
        V4,
        {"speculative_algorithm": "NEXTN"},
        "AssertionError",
        "Only EAGLE and DSPARK speculative algorithms are supported for DeepseekV4ForCausalLM",
    ),
    (
        "deepseek_v4_speculation.paths",
        V4,
        {"speculative_algorithm": "EAGLE"},
        "AssertionError",
        "Only EAGLE speculative algorithm with topk == 1 is supported",
    ),
    (
        "speculative_standalone",
        QWEN_NVFP4,
        {"speculative_algorithm": "STANDALONE", "tp": 2, "dp": 2, "enable_dp_attention": True},
        "ValueError",
        "Currently standalone speculative decoding does not support dp attention.",
    ),
    (
        "speculative_ngram",
        QWEN_NVFP4,
        {"speculative_algorithm": "NGRAM", "tp": 2, "dp": 2, "enable_dp_attention": True},
        "ValueError",
        "Currently ngram speculative decoding does not support dp attention.",
    ),
    (
        "speculative_ngram.page",
        GPT_OSS,
        {"speculative_algorithm": "NGRAM"},
        "ValueError",
        "speculative_eagle_topk(10) > 1 with page_size(64) > 1 is unstable",
    ),
    ("speculative_eagle.numbers", QWEN_NVFP4, {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, "AssertionError", ""),
    (
        "speculative_eagle.trtllm_mha",
        GPT_OSS,
        EAGLE_TREE,
        "ValueError",
        "trtllm_mha backend only supports topk = 1 for speculative decoding.",
    ),
    (
        "speculative_eagle.page",
        DEEPSEEK_BF16,
        EAGLE_TREE,
        "ValueError",
        "speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton')",
    ),
    (
        "speculative_eagle.page",
        DEEPSEEK_BF16,
        {"sglang": "0.5.12", **EAGLE_TREE},
        "ValueError",
        "speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results",
    ),
    (
        "radix_cache",
        checkpoint(**NEMOTRON, mlp_hidden_act="relu2"),
        {"sglang": "0.5.13", **EAGLE_TREE},
        "ValueError",
        "Speculative decoding for NemotronHForCausalLM is not compatible with radix cache",
    ),
    (
        "deepep_v2_draft",
        QWEN_NVFP4,
        {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_moe_a2a_backend": "deepep_v2"},
        "ValueError",
        "DeepEP v2 MoE is not validated as a speculative draft backend.",
    ),
    ("page_size", QWEN_NVFP4, {"chunked_prefill_size": 100}, "AssertionError", "chunked_prefill_size must be divisible by page_size"),
    (
        "cutedsl_budget",
        QWEN_NVFP4,
        {"sglang": "0.5.16", "runner": "flashinfer_cutedsl", "a2a": "flashinfer", "tp": 8, "dp": 8, "enable_dp_attention": True},
        "ValueError",
        "FlashInfer MoE A2A with flashinfer_cutedsl requires",
    ),
    (
        "flashinfer_budget",
        QWEN_NVFP4,
        {
            "runner": "flashinfer_cutedsl",
            "a2a": "flashinfer",
            "tp": 8,
            "dp": 8,
            "enable_dp_attention": True,
            "env": "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256",
        },
        "ValueError",
        "FlashInfer MoE A2A per-rank token budget exceeds",
    ),
]


@pytest.mark.parametrize(
    ("rule", "made", "values", "error", "begins"), REFUSALS, ids=[f"{case[0]}-{number}" for number, case in enumerate(REFUSALS)]
)
def test_refusals(rule, made, values, error, begins):
    refused = ask(made, **values)
    assert not refused.accepted
    assert refused.error == error
    assert refused.message.startswith(begins)
    (found,) = refused.findings
    assert (found.id, found.stage, found.severity) == (f"admit.{rule}", "admit", "refused")
    assert found.source == refused.error_source
    assert refused.message in found.observed
    assert refused.steps[-1].answer == f"{error}: {refused.message}"


def test_every_refusal_has_a_case_and_an_advice():
    assert {case[0] for case in REFUSALS} == set(ADVICE)


def test_every_rule_that_can_refuse_has_an_advice():
    """Read from the source: the first argument of each refuse() and check()."""
    names = set()
    for path in [*(ROOT / "helpers/stages/admission").glob("*.py"), ROOT / "helpers/stages/admit.py"]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("refuse", "check"):
                first = call.args[0]
                names.add(first.value if isinstance(first, ast.Constant) else ast.unparse(first))
    variables = {name for name in names if name == "rule"}  # budget.py: one function, two names
    assert names - variables <= set(ADVICE)


@pytest.mark.parametrize("rule", sorted(SOURCES))
def test_every_rule_says_where_it_is_in_every_release_it_exists_in(rule):
    first = SOURCES[rule][0][0]
    for known in RELEASES:
        if known.at_least(first):
            assert ": " in where(rule, known)


# The story of PR 30443.


def test_mixed_is_refused_by_cutedsl_in_one_release_and_accepted_in_the_next():
    old, new = (ask(QWEN_MIXED, sglang=version, runner="flashinfer_cutedsl") for version in ("0.5.15.post1", "0.5.16"))
    assert old.message == (
        "Invalid quantization 'modelopt_mixed'. \nFlashInfer CuteDSL MOE currently supports only: 'modelopt_fp4' or hybrid NVFP4 models."
    )
    assert old.error_source == "sglang 0.5.15.post1 server_args.py: _handle_moe_kernel_config"
    assert new.accepted and new.disable_shared_experts_fusion
    assert "upgrade to SGLang 0.5.16 or newer" in old.findings[0].remedy
    assert old.findings[0].reference.endswith("/pull/30443")
    assert old.findings[0].releases == tuple(known.version for known in RELEASES if not known.at_least("0.5.16"))


def test_the_hybrid_shape_escapes_the_list():
    assert ask(V4, sglang="0.5.15", runner="flashinfer_cutedsl").accepted
    assert not ask(V4, sglang="0.5.14", runner="flashinfer_cutedsl").accepted


def test_the_raw_flag_passes_the_list_while_modelconfig_keeps_mixed():
    bypass = ask(QWEN_MIXED, sglang="0.5.15", runner="flashinfer_cutedsl", quantization="modelopt_fp4")
    assert (bypass.accepted, bypass.quantization, bypass.model_quantization) == (True, "modelopt_fp4", "modelopt_mixed")


def test_without_blackwell_nothing_fills_in_the_quantization():
    refused = ask(QWEN_NVFP4, runner="flashinfer_cutedsl", gpu="H200")
    assert refused.message.startswith("Invalid quantization 'None'.")
    assert refused.findings[0].remedy.startswith("--quantization modelopt_fp4")
    assert ask(QWEN_NVFP4, runner="flashinfer_cutedsl", gpu="H200", quantization="modelopt_fp4").accepted


def test_a_checkpoint_with_only_the_other_file_stays_none():
    only_file = checkpoint(file={"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": []})
    assert ask(only_file, runner="flashinfer_trtllm").quantization is None
    assert ask(only_file, runner="flashinfer_trtllm").model_quantization == "modelopt_fp4"


def test_unquant_is_not_filled_in():
    assert ask(QWEN_NVFP4, quantization="unquant").quantization is None


# auto


@pytest.mark.parametrize(
    ("version", "quant", "values", "runner"),
    [
        ("0.5.19", mixed(), {}, "auto"),
        ("0.5.20", mixed(), {}, "flashinfer_trtllm"),
        ("0.5.23", mixed(), {"gpu": "RTX-PRO-6000"}, "auto"),
        ("0.5.12", NVFP4, {"gpu": "RTX-PRO-6000", "quantization": "modelopt_fp4"}, "auto"),
        ("0.5.13", NVFP4, {"gpu": "RTX-PRO-6000", "quantization": "modelopt_fp4"}, "flashinfer_cutlass"),
        ("0.5.23", NVFP4, {"gpu": "RTX-PRO-6000"}, "auto"),
        ("0.5.23", NVFP4, {}, "flashinfer_trtllm"),
        ("0.5.23", NVFP4, {"a2a": "deepep", "tp": 8}, "auto"),
        ("0.5.19", mixed("W4A16_NVFP4"), {}, "auto"),
        ("0.5.20", mixed("W4A16_NVFP4"), {}, "marlin"),
        ("0.5.23", None, {"quantization": "mxfp8", "runner": "triton"}, "flashinfer_trtllm"),
    ],
)
def test_what_auto_becomes(version, quant, values, runner):
    assert ask(checkpoint(quant=quant), sglang=version, **values).runner == runner


@pytest.mark.parametrize(
    ("gpu", "version", "runner"),
    [
        ("H200", "0.5.12", "flashinfer_cutlass"),
        ("H200", "0.5.13", "marlin"),
        ("B200", "0.5.13", "flashinfer_trtllm"),
        ("DGX-Spark", "0.5.23", "flashinfer_cutlass"),
    ],
)
def test_nemotron_always_resolves_auto(gpu, version, runner):
    assert ask(checkpoint(**NEMOTRON, quant=NVFP4, mlp_hidden_act="relu2"), sglang=version, gpu=gpu).runner == runner


@pytest.mark.parametrize(
    ("algorithm", "named"), [("W4A8_AWQ", "modelopt_fp8"), ("mixed_precision", "modelopt_fp8"), ("INT4_AWQ", "modelopt_fp8")]
)
def test_nemotron_takes_an_algorithm_nobody_names_for_fp8(algorithm, named):
    quant = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16}
    admission = ask(checkpoint(**NEMOTRON, quant=quant, mlp_hidden_act="relu2"), sglang="0.5.16", gpu="H200", runner="triton")
    assert (admission.model_quantization, admission.quantization) == ("modelopt", named)


@pytest.mark.parametrize(
    ("gpu", "chunk", "dp", "fits"),
    [
        ("B200", None, 8, True),
        ("B200", 512, 8, True),
        ("B200", 512, 16, False),
        ("B200", 100, 1, False),
        ("H100", 100, 1, True),
        ("B200", -1, 8, True),
    ],
)
def test_a_chunk_is_whole_pages_of_the_attention_backend(gpu, chunk, dp, fits):
    """64 tokens under trtllm_mha, one under fa3."""
    admission = ask(QWEN_NVFP4, sglang="0.5.23", gpu=gpu, tp=16, dp=dp, enable_dp_attention=dp > 1, chunked_prefill_size=chunk)
    assert admission.accepted == fits
    if not fits:
        assert admission.error_source == "sglang 0.5.23 arg_groups/validation_hook.py: check_server_args"
        remedy = admission.findings[0].remedy
        assert remedy == f"--chunked-prefill-size {64 * dp if dp > 1 else 128}"


@pytest.mark.parametrize(("chunk", "dp", "abstains"), [(None, 8, False), (2048, 8, False), (512, 8, True), (100, 1, True), (-1, 8, False)])
def test_a_chunk_that_may_not_fill_whole_pages_is_not_judged(chunk, dp, abstains):
    """For an architecture whose attention backend is not modelled."""
    made = checkpoint("Qwen3NextForCausalLM", "qwen3_next", NVFP4)
    admission = ask(made, sglang="0.5.23", tp=8, dp=dp, enable_dp_attention=dp > 1, chunked_prefill_size=chunk)
    assert admission.accepted
    assert [found.severity for found in admission.findings if found.id == "admit.page_size"] == (["abstained"] if abstains else [])


@pytest.mark.parametrize(
    ("gpu", "version", "runner"),
    [
        ("DGX-Spark", "0.5.12", "auto"),
        ("DGX-Spark", "0.5.15", "marlin"),
        ("DGX-Spark", "0.5.16", "flashinfer_mxfp4"),
        ("H200", "0.5.18", "auto"),
        ("H200", "0.5.19", "flashinfer_mxfp4"),
        ("A100", "0.5.23", "auto"),
    ],
)
def test_deepseek_v4_with_mxfp4_experts_resolves_auto_by_release(gpu, version, runner):
    original = checkpoint("DeepseekV4ForCausalLM", "deepseek_v4", FP8)
    assert ask(original, sglang=version, gpu=gpu).runner == runner


def test_kimi_k3_takes_its_kernels_where_they_are_installed():
    pool = "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL=/opt/pool"
    assert ask(KIMI_K3, sglang="0.5.17", env=pool).runner == "flashinfer_mxfp4"
    assert ask(KIMI_K3, sglang="0.5.18").runner == "flashinfer_mxfp4"


# What is rewritten, and the variables that are set


def test_an_all_to_all_rewrites_ep_after_the_runner_has_checked_it():
    assert ask(QWEN_NVFP4, a2a="deepep", tp=8, ep=1, runner="flashinfer_cutedsl").ep_size == 8
    assert ask(QWEN_NVFP4, a2a="deepep", tp=8, ep=2, runner="flashinfer_cutedsl").error == "AssertionError"


@pytest.mark.parametrize(("version", "accepted"), [("0.5.15", True), ("0.5.16", False), ("0.5.17", False), ("0.5.18", False)])
def test_the_variable_for_megamoe_does_not_spare_the_flag_its_checks_everywhere(version, accepted):
    asked = {"sglang": version, "a2a": "flashinfer", "env": "SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE=1"}
    assert ask(QWEN_NVFP4, **asked).accepted == accepted


@pytest.mark.parametrize(
    ("made", "version", "env"),
    [
        (QWEN_NVFP4, "0.5.16", {"SGLANG_MOE_NVFP4_DISPATCH": "True"}),
        (QWEN_MIXED, "0.5.16", {}),
        (QWEN_BF16, "0.5.14", {"SGLANG_MOE_NVFP4_DISPATCH": "True"}),
        (QWEN_BF16, "0.5.15", {}),
        (QWEN_MIXED, "0.5.23", {}),
    ],
)
def test_who_sends_tokens_as_nvfp4(made, version, env):
    flags = {
        "a2a": "flashinfer",
        "runner": "flashinfer_cutlass",
        "tp": 8,
        "dp": 8,
        "enable_dp_attention": True,
    }
    answer = ask(made, sglang=version, **flags)
    assert (answer.accepted, answer.env) == (True, env)


def test_a_variable_the_user_set_stays():
    flags = {"a2a": "flashinfer", "runner": "flashinfer_cutlass", "tp": 8, "dp": 8, "enable_dp_attention": True}
    assert ask(QWEN_NVFP4, env="SGLANG_MOE_NVFP4_DISPATCH=0", **flags).env == {}


@pytest.mark.parametrize(("version", "mode"), [("0.5.16", "auto"), ("0.5.17", "low_latency")])
def test_deepep_mode_is_coerced_from_0_5_17(version, mode):
    assert ask(QWEN_NVFP4, sglang=version, runner="flashinfer_cutedsl", a2a="deepep", tp=8).deepep_mode == mode


def test_the_runner_megamoe_is_an_all_to_all():
    answer = ask(QWEN_NVFP4, runner="megamoe", env="SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=65536")
    assert (answer.runner, answer.a2a, answer.accepted) == ("auto", "megamoe", True)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "capacity=8192, required=16384. Set `export SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK=2048`"),
        (
            {"max_prefill_tokens": 8193},
            "capacity=8192, required=8193. Set `export SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK=1025`",
        ),
    ],
)
def test_the_token_budget_says_what_would_fit(flags, text):
    shape = {"sglang": "0.5.16", "runner": "flashinfer_cutedsl", "a2a": "flashinfer", "tp": 8, "dp": 8, "enable_dp_attention": True}
    assert text in ask(QWEN_NVFP4, **shape, **flags).message
    assert ask(QWEN_NVFP4, **shape, max_prefill_tokens=8192).accepted


# Properties that hold whatever is asked


def test_every_allowlist_remedy_that_names_a_release_is_right():
    for known in RELEASES:
        for runner in ALLOWLISTS:
            if allowlist(runner, known) is None or runner == "experimental_sgl_trtllm":
                continue
            asked = deployment(sglang=known.version, runner=runner)
            refused = admit(QWEN_MIXED, detect(QWEN_MIXED, known), asked)
            for finding in refused.findings:
                _, found, version = finding.remedy.partition("upgrade to SGLang ")
                if found:
                    newer = replace(asked, release=release(version.split()[0]))
                    assert admit(QWEN_MIXED, detect(QWEN_MIXED, newer.release), newer).accepted


@pytest.mark.parametrize("name", ["qwen3.5-moe-mixed", "nemotron-h-nvfp4", "deepseek-v4-hybrid-config", "gpt-oss-nvfp4"])
def test_every_answer_is_whole(name):
    made = open_checkpoint(name)
    for known in RELEASES:
        for gpu in GPUS:
            answer = admit(made, detect(made, known), deployment(sglang=known.version, gpu=gpu.key))
            assert answer.accepted == (not answer.error) == (not answer.error_source)
            assert all(step.question.endswith("?") and step.source.startswith(f"sglang {known} ") for step in answer.steps)
            assert {finding.severity for finding in answer.findings} <= set(SEVERITIES)
