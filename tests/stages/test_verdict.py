"""One call asks every stage; a sweep asks it of many deployments."""

from dataclasses import replace

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import GPUS, RELEASES, a2a_backends, deployment, gpu, parse_launch, release, runners
from helpers.stages.admit import admit
from helpers.stages.detect import detect
from helpers.stages.route import route
from helpers.stages.verdict import EXAMINED, judge, sweep

MIXED = open_checkpoint("qwen3.5-moe-mixed")


def test_the_release_decides():
    before, after = (judge(MIXED, deployment(sglang=version, runner="flashinfer_cutedsl")) for version in ("0.5.15", "0.5.16"))
    assert (before.verdict.outcome, before.verdict.stage) == ("refused", "admit")
    assert before.verdict.deciding.id == "admit.kernel.quantization"
    assert after.admission.accepted and after.verdict.stages["admit"] == "passed"


@pytest.mark.parametrize("version", ["0.5.11", "0.5.23"])
def test_a_judgement_is_what_its_stages_say(version):
    asked = deployment(sglang=version, runner="flashinfer_trtllm")
    judged = judge(MIXED, asked)
    detection = detect(MIXED, asked.release)
    assert judged.detection is detection
    assert judged.admission.message == admit(MIXED, detection, asked).message
    assert judged.routing is route(MIXED, detection, asked.release, judged.admission.model_quantization)
    assert set(judged.admission.findings) <= set(judged.verdict.findings)
    assert judged.verdict.examined == EXAMINED


def test_a_refused_server_is_routed_all_the_same():
    judged = judge(MIXED, deployment(sglang="0.5.15", runner="flashinfer_cutedsl"))
    assert judged.routing.modules


def test_what_was_not_examined_is_said():
    asked = parse_launch("sglang serve m --mem-fraction-static 0.9", release("0.5.23"), gpu("B200"))
    config_only = open_checkpoint("qwen3.5-397b-v2-config")
    assert "the flags --mem-fraction-static 0.9" in judge(MIXED, asked).not_examined
    assert "only the configuration was given" in judge(config_only, asked).not_examined
    assert "only the configuration was given" not in judge(MIXED, asked).not_examined
    assert "speculative" not in judge(MIXED, asked).not_examined
    assert "speculative" in judge(MIXED, deployment(speculative_algorithm="EAGLE")).not_examined


def test_a_sweep_is_one_judgement_for_each_deployment():
    asked = [deployment(sglang="0.5.16", runner=runner, gpu=gpu.key) for runner in ("auto", "cutlass") for gpu in GPUS]
    judged = list(sweep(MIXED, asked))
    assert [answer.deployment for answer in judged] == asked
    for answer in judged:
        alone = judge(MIXED, answer.deployment)
        assert (answer.verdict.outcome, answer.verdict.findings) == (alone.verdict.outcome, alone.verdict.findings)


def test_every_outcome_has_its_reason_over_the_whole_matrix():
    """Releases x runners x all-to-alls x GPUs of one checkpoint: nothing raises, and no verdict but ``serves`` lacks a finding."""
    asked = (
        replace(deployment(sglang=known.version, tp=8), runner=runner, a2a=a2a, gpu=each)
        for known in RELEASES
        for runner in runners(known)
        for a2a in a2a_backends(known)
        for each in GPUS[::3]
    )
    for judged in sweep(MIXED, asked):
        assert (judged.verdict.deciding is None) == (judged.verdict.outcome == "serves")
        assert judged.admission.accepted or judged.verdict.outcome == "refused"
