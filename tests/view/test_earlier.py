"""Results of another question must never count for this one."""

import pytest

from helpers.deployment import deployment
from helpers.findings import STAGES, Finding, Verdict
from helpers.view.earlier import joined

BASE = Verdict((), frozenset(STAGES[:3]))
ASKED = {"sglang": "0.5.16", "runner": "flashinfer_cutedsl"}


def finding(stage: str) -> Finding:
    return Finding(
        id=f"{stage}.rule",
        stage=stage,
        severity="wrong_output",
        read="r",
        observed="o",
        expected="e",
        why="w",
        source="s",
        remedy="m",
        releases=("0.5.16",),
    )


def run(parameters: dict, verdict: Verdict | None) -> dict:
    return {"notebooks": [{"name": "04_load", "parameters": parameters, "verdict": verdict.to_dict() if verdict else None}]}


def test_load_and_run_of_the_same_question_count():
    earlier = Verdict((finding("load"), finding("admit")), frozenset(STAGES))
    verdict, missing = joined(BASE, "x", deployment(**ASKED), run({"checkpoint": "x", **ASKED}, earlier))
    assert missing == {}
    assert verdict.stages == dict(zip(STAGES, ["passed", "passed", "passed", "failed", "passed"], strict=True))
    assert verdict.findings == (finding("load"),)  # the admit finding of the earlier run is not taken: that stage was asked again


def test_a_default_that_the_notebook_did_not_read_is_the_same_deployment():
    earlier = run({"checkpoint": "x", "sglang": "0.5.16", "runner": "flashinfer_cutedsl", "tp": 1}, Verdict((), frozenset({"load"})))
    verdict, missing = joined(BASE, "x", deployment(**ASKED), earlier)
    assert verdict.stages["load"] == "passed"
    assert list(missing) == ["run"]


@pytest.mark.parametrize(
    ("earlier", "why"),
    [
        (None, "no earlier run"),
        (run({"checkpoint": "y", **ASKED}, Verdict((), frozenset(STAGES))), "another checkpoint or another deployment"),
        (run({"checkpoint": "x", "sglang": "0.5.15"}, Verdict((), frozenset(STAGES))), "another checkpoint or another deployment"),
        (run({"checkpoint": "x", **ASKED}, BASE), "no notebook of the earlier run examined it"),
        (run({"checkpoint": "x", **ASKED}, None), "another checkpoint or another deployment"),
    ],
)
def test_anything_else_does_not_and_says_why(earlier, why):
    verdict, missing = joined(BASE, "x", deployment(**ASKED), earlier)
    assert list(missing) == ["load", "run"]
    assert all(why in reason for reason in missing.values())
    assert verdict == BASE
