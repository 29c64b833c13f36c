"""What a run consists of, on which machine, and what it answers when it cannot be done."""

import json
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers.checkpoint import open_checkpoint
from helpers.errors import InputError, UsageError
from helpers.kernels import cases, execute, versions
from helpers.kernels.geometry import NAMED, Block
from helpers.kernels.isolate import Outcome
from helpers.kernels.runners import RUNNERS, chosen, here

SMALL = Block("small", 256, 128, 12, 3)


def asked(**given):
    usual = {
        "checkpoint": None,
        "layer": None,
        "tp": 1,
        "blocks": "",
        "kernels": "",
        "tokens": "1,8",
        "limit": 60,
        "no_timing": True,
        "json": True,
    }
    return SimpleNamespace(**usual | given)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(execute, "gpu_here", lambda: None)


# The machine ----------------------------------------------------------------------------------------------------------


def answer(monkeypatch, text=None, error=None):
    def smi(*args, **kwargs):
        if error:
            raise error
        return SimpleNamespace(stdout=text)

    monkeypatch.setattr(subprocess, "run", smi)


def test_the_gpu_is_what_nvidia_smi_says(monkeypatch):
    answer(monkeypatch, "NVIDIA H200, 9.0, 580.159.04\nNVIDIA H200, 9.0, 580.159.04\n")
    found = execute.gpu_here()
    assert found == execute.Gpu("NVIDIA H200", (9, 0), "580.159.04", 2) and found.arch == "sm_90"


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.CalledProcessError(9, "nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 10)]
)
def test_no_driver_is_no_gpu(monkeypatch, error):
    answer(monkeypatch, error=error)
    assert execute.gpu_here() is None


def test_a_driver_that_finds_nothing_is_no_gpu(monkeypatch):
    answer(monkeypatch, "No devices were found\n")
    assert execute.gpu_here() is None


def test_each_gpu_gets_its_kernels():
    assert {"b12x_w4a16_moe", "frost_w4a16_moe", "nvfp4_quantize_128x4"} <= set(here(9))
    assert "cutedsl_moe_wrapper" in here(10) and "cutedsl_moe_wrapper" not in here(9)
    assert "b12x_w4a4_moe" in here(12) and here(0) == ("torch_w4a16", "torch_w4a4")


def test_a_kernel_that_cannot_run_here_is_refused_with_what_can():
    with pytest.raises(UsageError, match=r"b12x_w4a16_moe cannot run here \(no driver\); what can: torch_w4a16, torch_w4a4"):
        chosen("b12x_w4a16_moe", here(0), "no driver")
    with pytest.raises(UsageError, match="did you mean frost_w4a16_moe"):
        chosen("frost_w4a16", here(9))


def test_a_gpu_whose_packages_do_not_fit_leaves_the_plain_kernels_and_the_reason(monkeypatch):
    ready = versions.Platform("linux", "0.7.4", "4.8.1", (13,), "3.6", "2.11.0", 13, (13, 0), "NVIDIA H200", (9, 0))
    monkeypatch.setattr(versions, "here", lambda: ready)
    assert execute.able() == (here(9), "")
    monkeypatch.setattr(versions, "here", lambda: replace(ready, flashinfer=None))
    names, why = execute.able()
    assert names == here(0) and "flashinfer-python is not installed" in why
    monkeypatch.setattr(versions, "here", lambda: replace(ready, gpu="Tesla T4", capability=(7, 5)))
    names, why = execute.able()
    assert names == here(0) and "Tesla T4 is SM75" in why


# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_plan_asks_every_question_of_every_kernel_that_takes_the_shape():
    plan = execute.moe_cases(NAMED["qwen3-30b-a3b"], here(9), (1, 8, 64), execute.ROUTINGS, True)
    kernels = {case["kernel"] for case in plan}
    assert kernels == {"torch_w4a16", "torch_w4a4", "b12x_w4a16_moe", "frost_w4a16_moe"}
    assert not [case for case in plan if case["kernel"] == "frost_w4a16_moe" and case["tokens"] > 8]
    assert {case["question"] for case in plan} == {"run", "experts", "faults"}
    assert {case["routing"] for case in plan} == set(execute.ROUTINGS)
    assert not [case for case in plan if case["time"] and (case["kernel"].startswith("torch") or case["routing"] != "random")]
    json.dumps(plan)


def test_a_shape_that_a_kernel_rejects_is_left_to_the_others():
    plan = execute.moe_cases(Block("narrow", 192, 96, 4, 2), here(9), (1,), ("random",), False)
    assert {case["kernel"] for case in plan} == {"torch_w4a16", "torch_w4a4"}


def test_the_budget_counts_what_has_to_be_compiled():
    plan = execute.moe_cases(NAMED["deepseek-r1"], here(9), execute.TOKENS, execute.ROUTINGS, True)
    assert execute.budget(plan).endswith(" min, most of it compilation")
    assert execute.budget(execute.moe_cases(SMALL, here(0), (1, 4), ("random",), False)) == "8 cases of 4 sizes"


@pytest.mark.parametrize("text", ["", "0", "9000", "1,x", "1;2"])
def test_numbers_of_tokens_that_are_none(text):
    with pytest.raises(UsageError, match="tokens"):
        execute.numbers(text, 8192)


def test_an_unknown_geometry_gets_a_suggestion():
    with pytest.raises(UsageError, match="deepseek-r1"):
        execute.blocks("deepseek-r2")


def test_a_checkpoints_own_experts_are_as_many_as_tokens_can_reach():
    block, source = execute.stored_source(open_checkpoint("qwen3-moe-nvfp4"), None, (1,))
    assert block.experts == len(source["experts"]) == block.top_k


@pytest.mark.parametrize(
    ("checkpoint", "layer", "message"),
    [
        ("qwen3.5-397b-v2-config", None, "only its configuration is here"),
        ("llama4-nvfp4", None, "no layer has NVFP4 experts in tensors of their own"),
        ("qwen3-moe-nvfp4", 77, "layer 77 has no NVFP4 experts; layers that have"),
    ],
)
def test_a_checkpoint_without_what_is_asked_says_so(checkpoint, layer, message):
    with pytest.raises(InputError, match=message):
        execute.stored_source(open_checkpoint(checkpoint), layer, (1,))


def test_a_checkpoint_without_experts_here_leaves_no_cases_but_a_reason():
    found, why = execute.own_cases(open_checkpoint("qwen3.5-397b-v2-config"), here(0), (1,), False)
    assert found == [] and "only its configuration" in why


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_is_estimated_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(cases, "free_bytes", lambda: 2 << 30)
    monkeypatch.setattr(cases.inputs, "synthetic", lambda *args: pytest.fail("allocated all the same"))
    case = execute.moe_cases(NAMED["deepseek-r1"], ("torch_w4a16",), (1,), ("random",), False)[0]
    with pytest.raises(InputError, match=r"needs about \d+\.\d GiB and 2\.0 are free; take fewer experts"):
        cases.work(case)


def test_the_estimate_covers_what_experts_take():
    experts = cases.inputs.synthetic(SMALL)
    assert experts.nbytes < cases.needed_bytes(SMALL, 1, 0.0)
    assert cases.needed_bytes(SMALL, 4096, 0.0) > cases.needed_bytes(SMALL, 1, 0.0)
    assert cases.free_bytes() > 0


def test_a_kernel_refuses_more_tokens_than_it_takes():
    case = {
        "question": "run",
        "kernel": "frost_w4a16_moe",
        "tokens": 9,
        "routing": "random",
        "time": False,
        "block": vars(NAMED["qwen3-30b-a3b"]),
    }
    with pytest.raises(InputError, match="takes at most 8 tokens"):
        cases.work(case)


# Results --------------------------------------------------------------------------------------------------------------


def test_a_run_on_a_cpu_answers_every_question(capsys, no_gpu):
    assert execute.run_command(asked(checkpoint="qwen3-moe-nvfp4", tokens="1,4")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu"] is None and len(found["results"]) == 8
    assert {result["question"] for result in found["results"]} == {"run", "experts", "faults"}
    assert all(result["right"] for result in found["results"])


CASE = {"question": "run", "kernel": "torch_w4a16", "tokens": 1, "routing": "random", "time": False, "block": vars(SMALL)}


@pytest.mark.parametrize(
    ("outcome", "right"),
    [
        (Outcome(0, "done", {"accepted": True, "against": {}}, "", 1.0), True),
        (Outcome(0, "done", {"accepted": False, "against": {}}, "", 1.0), False),
        (Outcome(0, "done", {"accepted": True, "against": {"other": {"accepted": False, "cosine": 0.5}}}, "", 1.0), False),
        (Outcome(0, "hung", None, "took more than 1 s", 1.0), False),
    ],
)
def test_right_is_accepted_and_agreeing(outcome, right):
    found = execute.result(CASE, outcome)
    assert found["right"] is right and found["block"] == "small" and found["state"] == outcome.state
    assert "small torch_w4a16 run T=1" in execute.line(found)


def test_one_wrong_result_is_the_exit_code(monkeypatch, capsys, no_gpu):
    wrong = execute.result(CASE, Outcome(0, "crashed", None, "its process ended with signal SIGSEGV", 0.1))
    monkeypatch.setattr(execute, "results", lambda cases, limit: iter([wrong]))
    assert execute.run_command(asked(checkpoint="qwen3-moe-nvfp4", json=False)) == 1
    assert "SIGSEGV" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name either --checkpoint or --blocks"),
        ({"checkpoint": "qwen3-moe-nvfp4", "blocks": "deepseek-r1"}, "name either"),
        ({"checkpoint": "qwen3-moe-nvfp4", "tokens": "none"}, "give whole numbers"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(no_gpu, given, message):
    with pytest.raises(UsageError, match=message):
        execute.run_command(asked(**given))


def test_the_same_output_again_is_told_from_another(monkeypatch):
    x, routing = torch.zeros(2, 4), SimpleNamespace(ids=None, weights=None)
    outputs = iter([torch.ones(2, 4), torch.ones(2, 4) * 1.5])
    found = cases._again(lambda *args: next(outputs), x, routing, torch.ones(2, 4), times=2)
    assert found == {"bitwise": False, "moved": 0.5}


def test_kernels_of_one_precision_are_held_against_each_other_and_others_are_not():
    experts = cases.inputs.synthetic(SMALL)
    case = {"tokens": 4, "routing": "random"}
    output, expected = torch.ones(4, 256), cases.checks.Reference(torch.ones(4, 256), torch.full((4, 256), 0.01))
    against = [
        set(cases._agreement(case, RUNNERS[kernel], experts, output, expected)["against"])
        for kernel in ("torch_w4a16", "torch_w4a4", "b12x_w4a16_moe", "frost_w4a16_moe")
    ]
    assert against == [set(), set(), {"torch_w4a16"}, {"torch_w4a16", "b12x_w4a16_moe"}]
    assert cases._agreement({**case, "tokens": 8}, RUNNERS["frost_w4a16_moe"], experts, output, expected) == {"against": {}}


def test_every_runner_says_what_it_rounds_for_any_number_of_tokens():
    for runner in RUNNERS.values():
        assert all(runner.roundings(tokens).contribution >= 0 for tokens in (1, 4, 5, 8192))
