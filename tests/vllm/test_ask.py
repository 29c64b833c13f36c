"""The question's client and its command, on a process that answers what a test says: no vLLM."""

import json
import sys
from types import SimpleNamespace

import pytest

from helpers.deployment import gpu
from helpers.errors import InputError, UsageError
from helpers.vllm import ask as asking
from helpers.vllm import command, environment
from helpers.vllm.ask import Question, ask

CHOSEN = {
    "accepted": True,
    "quantization": "modelopt_fp4",
    "quant_config": "ModelOptNvFp4Config",
    "experts": [{"count": 2, "layers": ["a", "b"], "method": "ModelOptNvFp4FusedMoE", "backend": "MARLIN", "kernel": "MarlinExperts"}],
    "selections": [
        {
            "layers": ["a", "b"],
            "count": 2,
            "weights": "w",
            "activations": None,
            "tried": [["FLASHINFER_TRTLLM", "TrtLlm", False, "kernel does not support current device cuda"], ["MARLIN", "M", True, ""]],
            "chosen": ["MARLIN", "M"],
            "requested": {"cutlass": {"backend": None, "kernel": None, "error": "ValueError: no"}},
        }
    ],
    "assumed": ["cutlass_scaled_mm_supports_fp4"],
}
REFUSED = {"accepted": False, "stage": "build", "error": "ValueError", "message": "no", "file": "a.py", "line": 3, "function": "f"}


@pytest.fixture
def process(tmp_path, monkeypatch):
    """``process(code)``: what runs in vLLM's place; `request` is what it was asked."""
    script = tmp_path / "inside.py"
    monkeypatch.setattr(environment, "python", lambda: sys.executable)
    monkeypatch.setattr(asking, "INSIDE", script)

    def write(code: str):
        script.write_text(f"import json, sys, time\nrequest = json.load(sys.stdin)\n{code}\n")

    return write


def says(*answers: dict) -> str:
    return "\n".join(f"print({json.dumps(json.dumps(answer))})" for answer in answers)


def test_answers_come_in_order(process, tmp_path):
    process(says(CHOSEN, REFUSED))
    first, second_answer = ask([Question(tmp_path), Question(tmp_path)], gpu("B200"))
    assert (first.outcome, first.backends, first.experts[0].layers) == ("accepted", "MARLIN", ("a", "b"))
    assert [one.reason for one in first.selections[0].passed_over] == ["kernel does not support current device cuda"]
    assert (second_answer.outcome, second_answer.source) == ("refused", "a.py:3 f")


def test_the_process_is_told_the_gpu_and_the_launch(process, tmp_path):
    process("print(json.dumps({'accepted': True, 'message': json.dumps(request)}))")
    (answer,) = ask([Question(tmp_path, tp=16, ep=16, moe_backend="marlin")], gpu("H200"))
    asked = json.loads(answer.message)
    assert asked["gpu"] == {"name": "NVIDIA H200", "capability": [9, 0], "memory_mib": 143771, "count": 16}
    (question,) = asked["questions"]
    assert (question["tp"], question["expert_parallel"], question["moe_backend"]) == (16, True, "marlin")


@pytest.mark.parametrize(("tp", "ep"), [(0, 1), (1, 0), (4, 2), (1, 2)])
def test_what_vllm_has_no_flags_for_is_not_asked(tmp_path, tp, ep):
    with pytest.raises(UsageError, match="tp"):
        Question(tmp_path, tp, ep)


def test_a_process_that_dies_is_one_line_with_its_last_words(process, tmp_path):
    process("sys.exit('ImportError: no torch')")
    with pytest.raises(InputError, match=r"gave 0 of 1 answers: ImportError: no torch"):
        ask([Question(tmp_path)], gpu("B200"))


def test_a_process_that_hangs_is_ended(process, tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "START_SECONDS", -10)
    process("time.sleep(600)")
    with pytest.raises(InputError, match=r"nothing within 1 seconds"):
        ask([Question(tmp_path)], gpu("B200"), seconds=1)


@pytest.mark.parametrize(("said", "code"), [(CHOSEN, 0), (REFUSED, 1), (REFUSED | {"simulation": True}, 3)])
def test_the_command_s_exit_code_is_the_outcome(process, capsys, said, code):
    process(says(said))
    arguments = SimpleNamespace(checkpoint="qwen3-moe-nvfp4", gpu="B200", tp=1, ep=1, moe_backend="auto", json=False)
    assert command._ask(arguments) == code
    printed = capsys.readouterr().out
    assert "simulated: the GPU's answers" in printed
    if code == 0:
        assert "  FLASHINFER_TRTLLM (TrtLlm): kernel does not support current device cuda\n  MARLIN (M): chosen" in printed
        assert "--moe-backend cutlass: ValueError: no" in printed
        assert "assumed of vLLM's compiled library: yes to cutlass_scaled_mm_supports_fp4" in printed
    else:
        assert "build: ValueError: no (a.py:3 f)" in printed
    assert ("not an answer of vLLM's" in printed) == (code == 3)


def test_the_command_s_json_names_what_is_simulated(process, capsys):
    process(says(CHOSEN))
    arguments = SimpleNamespace(checkpoint="qwen3-moe-nvfp4", gpu="B200", tp=1, ep=1, moe_backend="auto", json=True)
    assert command._ask(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "accepted" and "Triton's driver" in said["simulated"] and "select_nvfp4_moe_backend" in said["real"]
