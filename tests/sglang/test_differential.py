"""The model held equal to real releases. ORACLE=required: all of CI's releases must be built; auto: those that are; off: none."""

import os
import sys

import pytest

from helpers.deployment import RELEASES, release
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.differential import compare_releases, known
from helpers.sglang.oracle import askable, mode

pytestmark = [pytest.mark.xdist_group("sglang"), pytest.mark.timeout(2400)]

# DIFFERENTIAL="all" or releases separated by blanks; SAMPLE and MUTANTS: how many drawn launches and variations a checkpoint.
WANTED = os.environ.get("DIFFERENTIAL") or " ".join(DEFAULT_RELEASES)
NAMES = [known.version for known in RELEASES] if WANTED == "all" else WANTED.split()
SAMPLE, MUTANTS = 40, 2


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
