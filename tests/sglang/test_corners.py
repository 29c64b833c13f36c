"""The odd checkpoints themselves: distinct, and none of them makes the suite fall over."""

import pytest

from helpers.deployment import Deployment, release
from helpers.errors import InputError
from helpers.sglang.corners import corners, flags_of
from helpers.stages.verdict import judge

RELEASES = ("0.5.11", "0.5.15", "0.5.16", "0.5.20", "0.5.23")


def test_each_has_a_name_of_its_own():
    names = [corner.name for corner in corners()]
    assert len(names) == len(set(names)) > 200


def test_some_are_built_under_flags():
    assert any(flags_of(corner, release("0.5.23")) for corner in corners())


@pytest.mark.parametrize("corner", corners(), ids=lambda corner: corner.name)
def test_the_verdict_says_something(corner):
    """InputError is the suite's one line about a file it cannot read; anything else would be a traceback."""
    for version in RELEASES:
        for runner in ("auto", "flashinfer_cutedsl"):
            try:
                outcome = judge(corner, Deployment(release(version), runner)).verdict.outcome
            except InputError as error:
                assert "\n" not in str(error)
            else:
                assert outcome
