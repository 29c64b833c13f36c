"""The run stage counts only the kernel that SGLang would call, on the deployment's own GPU."""

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment
from helpers.stages.run import examined, kernel_of
from helpers.stages.verdict import judge

RIGHT = {"kernel": "cutedsl_moe_wrapper", "tokens": 8, "routing": "random", "state": "done", "right": True, "cosine": 0.99999}
WRONG = RIGHT | {"right": False, "cosine": 0.5, "within": 0.2}
HUNG = {"kernel": "cutedsl_moe_wrapper", "tokens": 8, "state": "hung", "right": False, "reason": "took more than 120 s for this case"}


def judged(runner="flashinfer_cutedsl", **given):
    return judge(open_checkpoint("qwen3.5-moe-mixed"), deployment(sglang="0.5.23", runner=runner, gpu="B200", **given))


def asked(judgement, results, here="sm_100"):
    return examined(judgement.verdict, judgement.admission, "sm_100", here, results)


def test_the_kernel_is_that_of_the_resolved_runner():
    assert kernel_of(judged().admission) == "cutedsl_moe_wrapper"
    assert kernel_of(judged("flashinfer_trtllm").admission) == ""


def test_a_right_run_passes_the_stage():
    verdict, why = asked(judged(), [RIGHT])
    assert verdict.stages["run"] == "passed" and why == ""


@pytest.mark.parametrize(("result", "outcome"), [(WRONG, "wrong_output"), (HUNG, "fails_at_first_forward")])
def test_a_bad_run_fails_it_and_says_why(result, outcome):
    judgement = judged()
    verdict, why = asked(judgement, [RIGHT, result])
    assert verdict.stages["run"] == "failed" and why == ""
    (finding,) = [finding for finding in verdict.findings if finding.stage == "run"]
    assert finding.severity == outcome and "8 tokens" in finding.read and finding.remedy


@pytest.mark.parametrize(
    ("judgement", "results", "here", "reason"),
    [
        (judged(), [RIGHT], "sm_90", "the deployment's GPU is sm_100, and this one is sm_90"),
        (judged(), [RIGHT], "", "there is none here"),
        (judged(), [RIGHT | {"kernel": "torch_w4a4"}], "sm_100", "cutedsl_moe_wrapper was not run"),
        (judged("flashinfer_trtllm"), [RIGHT], "sm_100", "uses a kernel that is not one of these"),
    ],
)
def test_anything_else_leaves_it_open_with_a_reason(judgement, results, here, reason):
    verdict, why = asked(judgement, results, here)
    assert verdict == judgement.verdict and reason in why


def test_a_server_that_does_not_start_runs_nothing():
    judgement = judge(open_checkpoint("qwen3.5-moe-mixed"), deployment(sglang="0.5.15", runner="flashinfer_cutedsl"))
    verdict, why = asked(judgement, [RIGHT])
    assert verdict.stages["run"] == "not_examined" and why == "the server does not start"
