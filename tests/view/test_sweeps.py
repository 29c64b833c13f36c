"""Sweeps ask the stages the same question many times: each answer must be that of the single question."""

from dataclasses import replace

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import RELEASES, a2a_backends, deployment, release, runners
from helpers.stages.route import route
from helpers.stages.verdict import judge
from helpers.suite.alternatives import alternatives
from helpers.view import layers, sweeps, tables


@pytest.fixture(scope="module")
def mixed():
    return open_checkpoint("qwen3.5-moe-mixed")


def test_every_bundled_checkpoint_has_a_name_or_none_on_every_release():
    bundled = sweeps.bundled()
    found = sweeps.detections(bundled)
    assert set(found) == {(name, known.version) for name in bundled for known in RELEASES}


def test_an_admission_of_a_sweep_is_that_of_the_single_question(mixed):
    found = sweeps.admissions(mixed, deployment(tp=2), ["flashinfer_cutedsl", "marlin"], ["none", "deepep"])
    assert ("0.5.11", "marlin", "none", "B200") not in found  # that release does not know the runner
    for (version, runner, a2a, gpu), one in found.items():
        alone = sweeps.admitted(mixed, sglang=version, runner=runner, a2a=a2a, gpu=gpu, tp=2)
        assert (one.accepted, one.message) == (alone.accepted, alone.message)


def test_accepted_and_auto_say_so_where_a_release_lacks_the_runner_or_refuses(mixed):
    states = sweeps.accepted(mixed)
    assert states["marlin", "0.5.11"] == "absent"
    assert (states["flashinfer_cutedsl", "0.5.15"], states["flashinfer_cutedsl", "0.5.16"]) == ("refused", "accepted")
    assert sweeps.auto_runner(mixed)["B200", "0.5.23"] == "flashinfer_trtllm"


def test_outcomes_are_the_verdicts_of_the_single_questions(mixed):
    asked = deployment(runner="flashinfer_cutlass")
    for (runner, version), outcome in sweeps.outcomes(mixed, asked).items():
        assert outcome == judge(mixed, deployment(sglang=version, runner=runner)).verdict.outcome


def test_every_alternative_can_be_written_as_a_deployment(mixed):
    wide = {"a2a": "flashinfer", "tp": 8, "dp": 8, "enable_dp_attention": True, "chunked_prefill_size": 8192}
    asked = deployment(sglang="0.5.23", runner="flashinfer_cutedsl", **wide)
    tried = alternatives(judge(mixed, asked))
    assert {"env", "runner", "sglang"} <= {other.changed for other in tried}
    for other in tried:
        changed = sweeps.changed(asked, other.changed, other.value)
        assert changed != asked
        assert judge(mixed, changed).verdict.outcome == other.outcome


def test_what_the_explorers_can_show_is_shown(mixed):
    """A callback's exception never reaches a notebook, so every result is rendered here."""
    asked = deployment()
    for known in RELEASES:
        for a2a in a2a_backends(known):
            for runner in runners(known):
                one = sweeps.admission(mixed, replace(asked, release=known, runner=runner, a2a=a2a))
                assert ("accepted" if one.accepted else "refused") in tables.admission(one).plain
    for name, checkpoint in sweeps.bundled().items():
        newest = release("0.5.23")
        for module in layers.grid(route(checkpoint, sweeps.detect(checkpoint, newest), newest).modules).by_layer().values():
            assert module.prefix in tables.steps(module.steps(newest)).plain, name
