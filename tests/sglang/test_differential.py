"""The model held equal to real releases. ORACLE=required: all of CI's releases must be built; auto: those that are; off: none."""

import os
import sys
from collections import defaultdict

import pytest

from helpers.deployment import RELEASES, release
from helpers.sglang import breaking
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.compare import judge_arguments, judge_modules
from helpers.sglang.differential import compare_releases, known
from helpers.sglang.oracle import askable, mode

pytestmark = [pytest.mark.xdist_group("sglang"), pytest.mark.timeout(2400)]

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


# Conditions that may be turned round without any answer changing, each with its reason.
NO_DIFFERENCE: dict[str, str] = {}
# Admission rules that only other releases, or flags outside the matrix, reach.
NOT_REACHED: dict[str, str] = {}


def _differs(judge, *recorded) -> bool:
    """Whether the broken model answers otherwise than the release; it may also fall over."""
    try:
        found = judge(*recorded)
    except Exception:  # noqa: BLE001  a broken model may raise anything, and that is noticed
        return True
    return found is not None and not any(entry.explains(found) for entry in known())


@pytest.fixture(scope="module")
def hits(report):
    """(rule, what it did) -> some recorded launches in which it did."""
    hits = defaultdict(list)
    for question, real in report.launches:
        seen = set()
        with breaking.watched(seen):
            if _differs(judge_arguments, question, real):
                continue  # a disagreement of its own would be taken for the break's
        for what in seen:
            if len(hits[what]) < 200:
                hits[what].append((question, real))
    return hits


def test_breaking_any_admission_rule_is_noticed(hits):
    quiet = []
    for (rule, action), launches in hits.items():
        with breaking.without(rule, action):
            if not any(_differs(judge_arguments, question, real) for question, real in launches):
                quiet.append(f"{rule}: {action}")
    assert quiet == []


def test_every_admission_rule_of_the_compared_releases_is_asked(hits):
    """A rule that no question reaches is not held by the comparison."""
    reached = {rule for rule, _ in hits}
    assert {rule for rule, _ in breaking.named_rules()} - reached <= set(NOT_REACHED)


def test_turning_round_any_condition_of_detect_and_route_is_noticed(report):
    launches = [recorded for recorded in report.launches if recorded[0].checkpoint.name.startswith("mutant")]
    launches = [recorded for recorded in launches if not _differs(judge_arguments, *recorded)]
    models = sorted(report.models, key=lambda recorded: len(recorded[2].modules))
    models = [recorded for recorded in models if not _differs(judge_modules, *recorded)]
    quiet = []
    for condition in breaking.conditions():
        with breaking.turned_round(condition):
            noticed = any(_differs(judge_modules, *recorded) for recorded in models) or any(
                _differs(judge_arguments, *recorded) for recorded in launches
            )
        if not noticed and condition.text not in NO_DIFFERENCE:
            quiet.append(f"{condition.place}: {condition.text}")
    assert quiet == []
