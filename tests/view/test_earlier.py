"""Results of another question must never count for this one."""

from dataclasses import replace

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


def test_an_audit_of_the_weights_gives_its_findings_and_leaves_the_stage_open():
    note = replace(finding("load"), severity="note")
    earlier = run({"checkpoint": "x", **ASKED}, Verdict((note,), frozenset(STAGES[:3])))
    earlier["notebooks"][0]["checks"] = [{"id": "audit.matrices", "state": "pass", "observed": "96, 0 blocks unread"}]
    verdict, missing = joined(BASE, "x", deployment(**ASKED), earlier)
    assert verdict.findings == (note,)
    assert verdict.stages["load"] == "not_examined"
    assert "96, 0 blocks unread" in missing["load"] and "findings: 1" in missing["load"]


def test_an_audit_that_proves_a_failure_fails_the_stage():
    earlier = run({"checkpoint": "x", **ASKED}, Verdict((finding("load"),), frozenset(STAGES[:3])))
    verdict, missing = joined(BASE, "x", deployment(**ASKED), earlier)
    assert verdict.stages["load"] == "failed"
    assert list(missing) == ["run"]


def test_an_audit_that_did_not_run_gives_nothing():
    note = replace(finding("load"), severity="note")
    earlier = run({"checkpoint": "x", **ASKED}, Verdict((note,), frozenset(STAGES[:3])))
    earlier["notebooks"][0]["checks"] = [{"id": "audit.matrices", "state": "not_run", "observed": ""}]
    verdict, missing = joined(BASE, "x", deployment(**ASKED), earlier)
    assert verdict == BASE
    assert "examined it" in missing["load"]
