"""What the real vLLM answers, on simulated GPUs. Never required: skipped where `make vllm` has not been run."""

import shutil

import pytest

from helpers.deployment import gpu
from helpers.paths import DATA
from helpers.sglang.oracle import mode
from helpers.vllm import environment
from helpers.vllm.ask import Question, ask

CHECKPOINTS = DATA / "checkpoints"
ORDER = ["FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED", "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "HUMMING"]

pytestmark = [
    pytest.mark.skipif(mode() == "off", reason="vllm was not asked (oracle: off)"),
    pytest.mark.skipif(environment.built() is None, reason=f"vllm {environment.VERSION} is not built (make vllm)"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def on_b200(tmp_path_factory):
    broken = tmp_path_factory.mktemp("broken")
    shutil.copytree(CHECKPOINTS / "qwen3-moe-nvfp4", broken, dirs_exist_ok=True)
    config = (broken / "config.json").read_text()
    (broken / "config.json").write_text(config.replace("Qwen3MoeForCausalLM", "NoSuchForCausalLM"))
    flat = CHECKPOINTS / "qwen3-moe-nvfp4"
    questions = {
        "flat": Question(flat),
        "mixed": Question(CHECKPOINTS / "qwen3-moe-mixed"),
        "w4a16": Question(CHECKPOINTS / "qwen3-moe-w4a16"),
        "spread": Question(flat, tp=2, ep=2),
        "asked for": Question(flat, moe_backend="flashinfer_b12x"),
        "broken": Question(broken),
    }
    return dict(zip(questions, ask(list(questions.values()), gpu("B200")), strict=True))


@pytest.fixture(scope="module")
def on_h200():
    return ask([Question(CHECKPOINTS / "qwen3-moe-nvfp4")], gpu("H200"))[0]


def test_modelopt_is_detected_in_both_its_names(on_b200):
    assert (on_b200["flat"].quantization, on_b200["flat"].quant_config) == ("modelopt_fp4", "ModelOptNvFp4Config")
    assert (on_b200["mixed"].quantization, on_b200["mixed"].quant_config) == ("modelopt_mixed", "ModelOptMixedPrecisionConfig")
    assert {one.method for one in on_b200["mixed"].experts} == {"ModelOptNvFp4FusedMoE"}


def test_the_first_backend_of_a_b200_is_trtllm(on_b200):
    (selection,) = on_b200["flat"].selections
    assert selection.count == 2 and selection.chosen == ("FLASHINFER_TRTLLM", "TrtLlmNvFp4ExpertsModular")
    assert [one.reason for one in selection.passed_over] == ["kernel does not support routing method 0"]


def test_on_a_h200_every_w4a4_kernel_is_passed_over_in_order(on_h200):
    (selection,) = on_h200.selections
    assert list(dict.fromkeys(one.backend for one in selection.tried)) == ORDER
    assert selection.chosen == ("HUMMING", "HummingIndexedExperts") and all(one.reason for one in selection.passed_over)


def test_sixteen_bit_activations_are_asked_about_as_such(on_b200):
    assert {one.activations for one in on_b200["w4a16"].selections} == {None}
    assert on_b200["w4a16"].backends == "MARLIN"


def test_experts_spread_over_ranks_are_built_on_the_first(on_b200):
    assert on_b200["spread"].outcome == "accepted" and on_b200["spread"].backends == "FLASHINFER_TRTLLM"


def test_a_backend_asked_for_by_name_is_refused_with_the_line_that_does(on_b200):
    answer = on_b200["asked for"]
    assert (answer.outcome, answer.error, answer.stage) == ("refused", "ValueError", "build")
    assert "'FLASHINFER_B12X' does not support the deployment configuration" in answer.message
    assert answer.file == "model_executor/layers/fused_moe/oracle/nvfp4.py" and answer.line > 0
    requested = on_b200["flat"].selections[0].requested["flashinfer_b12x"]
    assert requested["error"] == f"ValueError: {answer.message}"


def test_a_checkpoint_that_vllm_cannot_read_is_an_answer(on_b200):
    assert on_b200["broken"].outcome == "refused" and "NoSuchForCausalLM" in on_b200["broken"].message


def test_an_answer_names_what_stood_for_the_machine(on_b200):
    assert "vllm._C_stable_libtorch" in on_b200["flat"].stood_for
    assert set(on_b200["flat"].assumed) <= {
        "cutlass_scaled_mm_supports_fp8",
        "cutlass_scaled_mm_supports_block_fp8",
        "cutlass_scaled_mm_supports_fp4",
        "cutlass_group_gemm_supported",
    }


def test_a_question_that_hangs_is_ended_at_its_limit():
    (answer,) = ask([Question(CHECKPOINTS / "qwen3-moe-nvfp4")], gpu("B200"), seconds=1)
    assert (answer.error, answer.outcome) == ("Timeout", "not asked")
