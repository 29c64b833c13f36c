"""The model held equal to real releases. ORACLE=required: all of CI's releases must be built; auto: those that are; off: none."""

import os
import random
import sys
from collections import defaultdict

import pytest

from helpers.deployment import RELEASES, release
from helpers.sglang import breaking
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.compare import judge_arguments, judge_modules
from helpers.sglang.differential import compare_releases, known
from helpers.sglang.oracle import askable, mode

pytestmark = pytest.mark.timeout(2400)

# DIFFERENTIAL="all" or releases separated by blanks; SAMPLE and MUTANTS: how many drawn launches and variations a checkpoint.
WANTED = os.environ.get("DIFFERENTIAL") or " ".join(DEFAULT_RELEASES)
NAMES = [known.version for known in RELEASES] if WANTED == "all" else WANTED.split()
SAMPLE, MUTANTS = 40, 3


@pytest.fixture(scope="module")
def report(request):
    there, missing = askable(NAMES)
    if not there:
        pytest.skip(missing)
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line):
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr, flush=True)

    say(f"\n{missing}" if missing else "")
    report = compare_releases([release(name) for name in there], SAMPLE, MUTANTS, say)
    for group in report.groups()[:20]:
        say(f"{len(group)} like this: {group[0]}")
    say(report.last_line)
    return report


@pytest.mark.parametrize("name", NAMES)
def test_release_was_compared(name):
    there, missing = askable([name])
    if not there:
        pytest.skip(missing)


def test_the_model_and_the_releases_agree(report):
    assert not report.disagreements, f"{report.last_line}; the first: {report.disagreements[0]}"


def test_the_questions_are_distinct_and_as_many_as_promised(report):
    assert len(report.asked) == report.questions
    if mode() == "required":
        assert report.questions >= 30_000
        assert report.modules >= 70_000


def test_every_known_disagreement_still_occurs(report):
    compared = set(askable(NAMES)[0])
    for entry in known():
        if entry.releases == ("all",) or set(entry.releases) & compared:
            assert report.explained[entry.id], f"{entry.id} no longer occurs: remove it from data/known_disagreements.toml"


# Functions of detect and route that may decide otherwise without any compared answer changing, each with its reason.
NOT_HELD = {
    "detect.py detect": "its conditions word steps and findings; what it decides is in the functions it calls",
    "names.py LayerAlgorithms.blocks": "read by findings only",
    "detect.py _mxfp8_fields": "fills in fields of a flat MXFP8 config that no compared answer shows",
    "methods.py _mxfp4": "no checkpoint of the matrix is MXFP4 throughout",
    "quant_config.py _replace_prefix": "no checkpoint of the matrix has a class with remap_prefix",
    "quant_config.py _common_group_size": "no checkpoint of the matrix has several config_groups",
    "quant_config.py _hybrid": "its condition is about draft layers (stages.*), which the matrix does not build",
}
# What an admission rule does without any compared answer showing it, each with its reason.
NOT_SHOWN = {
    "a2a: decide decode_graph": "read by token budgets only, and no launch of the matrix comes near one without decode graphs",
    "a2a: export NCCL_CUMEM_ENABLE": "set for deepep_v2, whose launches in the matrix are refused later for another reason",
    "dispatch_type: decide dispatch_type": "the dispatch type is not among the compared fields",
}
_OTHER_RELEASES = "only releases outside CI's three have it: make differential RELEASES=all"
_NO_CHECKPOINT = "no checkpoint of the matrix meets it; tests/stages says what the rule is"
_NO_LAUNCH = "no launch of the matrix gives the flags or variables it waits for; tests/stages says what the rule is"
# Admission rules that no question reaches, each with its reason.
NOT_REACHED = {
    "a2a_backend": _OTHER_RELEASES,
    "config.model_type": _OTHER_RELEASES,
    "layer_types": _OTHER_RELEASES,
    "cutlass_variable": _NO_LAUNCH,
    "a2a.dispatch_flag": _NO_LAUNCH,
    "a2a.w4a16_dispatch": _NO_LAUNCH,
    "dispatch_type.runner": _NO_LAUNCH,
    "dispatch_type.variable": _NO_LAUNCH,
    "lora_runner.draft": _NO_LAUNCH,
    "a2a.megamoe_gpu": _NO_CHECKPOINT,
    "deepseek_v4_speculation.algorithm": _NO_LAUNCH,
    "deepseek_v4_speculation.paths": _NO_LAUNCH,
    "kimi_k3.kernels": _NO_CHECKPOINT,
    "nemotron_h.activation": _NO_CHECKPOINT,
    "nemotron_h.w4a16_a2a": _NO_CHECKPOINT,
    "nemotron_h.w4a16_runner": _NO_CHECKPOINT,
}


def _differs(judge, *recorded) -> bool:
    """Whether the broken model answers otherwise than the release; it may also fall over."""
    try:
        found = judge(*recorded)
    except Exception:  # noqa: BLE001  a broken model may raise anything, and that is noticed
        return True
    return found is not None and not any(entry.explains(found) for entry in known())


def _needs_all_three():
    """A rule is held by the release that has it, so these tests mean something only with all of CI's releases."""
    if not set(DEFAULT_RELEASES) <= set(askable(NAMES)[0]):
        pytest.skip(f"needs sglang {', '.join(DEFAULT_RELEASES)} together")


@pytest.fixture(scope="module")
def hits(report):
    """(rule, what it did) -> the recorded launches in which it did, in an order that mixes checkpoints, GPUs and releases."""
    hits = defaultdict(list)
    launches = list(report.launches)
    random.Random(0).shuffle(launches)  # neighbours differ in little: mixed, a break is noticed after few of them
    for question, real in launches:
        seen = set()
        with breaking.watched(seen):
            if _differs(judge_arguments, question, real):
                continue  # a disagreement of its own would be taken for the break's
        for what in seen:
            hits[what].append((question, real))
    return hits


def test_breaking_any_admission_rule_is_noticed(hits):
    quiet = []
    for (rule, action), launches in hits.items():
        with breaking.without(rule, action):
            if not any(_differs(judge_arguments, question, real) for question, real in launches):
                quiet.append(f"{rule}: {action}")
    assert set(quiet) <= set(NOT_SHOWN)


def test_every_admission_rule_is_asked(hits):
    """A rule that no question reaches is not held by the comparison."""
    _needs_all_three()
    unreached = {rule for rule, _ in breaking.named_rules()} - {rule for rule, _ in hits}
    assert unreached <= set(NOT_REACHED)


def test_turning_round_any_deciding_function_of_detect_and_route_is_noticed(report):
    _needs_all_three()
    plain = [recorded for recorded in report.launches if recorded[0].deployment.tp == 1 and recorded[0].deployment.gpu.key == "B200"]
    launches = [recorded for recorded in plain if not _differs(judge_arguments, *recorded)]
    models = sorted(report.models, key=lambda recorded: len(recorded[2].modules))
    models = [recorded for recorded in models if not _differs(judge_modules, *recorded)]

    def noticed(condition) -> bool:
        with breaking.turned_round(condition):
            return any(_differs(judge_modules, *recorded) for recorded in models) or any(
                _differs(judge_arguments, *recorded) for recorded in launches
            )

    quiet = {name for name, conditions in breaking.deciding_functions().items() if not any(map(noticed, conditions))}
    assert quiet <= set(NOT_HELD)
