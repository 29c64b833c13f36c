"""vLLM's answer beside SGLang's in the notebook: made-up answers, so that every case is there."""

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment
from helpers.errors import InputError
from helpers.stages.verdict import judge
from helpers.view import second
from helpers.vllm.ask import Answer, Experts, Selection, Tried

EXPERTS = Experts(2, ("a", "b"), "ModelOptNvFp4FusedMoE", "MARLIN", "M")
PASSED_OVER = Tried("FLASHINFER_TRTLLM", "TrtLlm", False, "kernel does not support current device cuda")
SELECTION = Selection(
    2, "w", None, (PASSED_OVER, Tried("MARLIN", "M", True, "")), ("MARLIN", "M"), {"cutlass": {"backend": None, "error": "ValueError: no"}}
)
CHOSEN = Answer(
    "0.33.0",
    True,
    quantization="modelopt_fp4",
    experts=(EXPERTS,),
    selections=(SELECTION,),
)
REFUSED = Answer("0.33.0", False, stage="build", error="ValueError", message="no", file="a.py", line=3, function="f")


@pytest.fixture
def judgement():
    return judge(open_checkpoint("qwen3-moe-nvfp4"), deployment(sglang="0.5.23", runner="cutlass"))


def shown(oracle, judgement, **flags):
    return second.beside_sglang(oracle, judgement.checkpoint, deployment(sglang="0.5.23", runner="cutlass", **flags), judgement).plain


def test_the_notebook_says_why_vllm_was_not_asked(judgement, monkeypatch):
    def breaks(questions, gpu):
        raise InputError("it broke")

    monkeypatch.setattr(second, "built", lambda: {"vllm": "0.33.0"})
    monkeypatch.setattr(second, "ask", breaks)
    assert shown("off", judgement).startswith("vLLM 0.33.0 was not asked: oracle is off. It needs `make vllm` once")
    assert shown("auto", judgement, tp=8, ep=4).startswith("vLLM 0.33.0 was not asked: UsageError: ep 4 with tp 8")
    assert "dp is 2" in shown("auto", judgement, tp=2, dp=2, enable_dp_attention=True)
    assert shown("required", judgement) == "vLLM 0.33.0 was not asked: InputError: it broke"
    monkeypatch.setattr(second, "built", lambda: None)
    assert shown("required", judgement) == "vLLM 0.33.0 was not asked, because it is not built: make vllm"


def test_the_notebook_shows_both_servers(judgement, monkeypatch):
    monkeypatch.setattr(second, "built", lambda: {"vllm": "0.33.0"})
    monkeypatch.setattr(second, "ask", lambda questions, gpu: [CHOSEN])
    plain = shown("auto", judgement)
    assert "kernel does not support current device cuda" in plain and "no kernel runs" in plain
    found = {row["question"]: row["vLLM 0.33.0"] for row in second.rows(CHOSEN, judgement.deployment, judgement)}
    assert found == {
        "outcome": "accepted",
        "detected quantisation": "modelopt_fp4",
        "method of the experts": "ModelOptNvFp4FusedMoE",
        "backend of the experts": "MARLIN",
        "cutlass, asked for by name": "ValueError: no",
    }


def test_a_refusal_is_shown_with_its_line_and_no_experts_with_why(judgement):
    refused = {row["question"]: row["vLLM 0.33.0"] for row in second.rows(REFUSED, judgement.deployment, judgement)}
    assert (refused["outcome"], refused["method of the experts"]) == ("refused: ValueError: no (a.py:3 f)", "not reached")
    dense = {row["question"]: row["vLLM 0.33.0"] for row in second.rows(Answer("0.33.0", True), judgement.deployment, judgement)}
    assert dense["method of the experts"] == "none: no expert layer is built"
