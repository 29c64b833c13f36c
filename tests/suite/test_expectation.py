import pytest

from helpers.errors import UsageError
from helpers.findings import STAGES, Finding, Verdict
from helpers.suite.expectation import contradiction, parse


def verdict(*proven: tuple[str, str]) -> Verdict:
    """A verdict with findings of these (stage, severity) pairs; detect, admit and route were examined."""
    findings = tuple(Finding(f"{stage}.rule", stage, severity, "f", "o", "e", "w", "s", "r") for stage, severity in proven)
    return Verdict(findings, frozenset(("detect", "admit", "route")))


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [("", ("serves",)), ("refused", ("refused",)), (" off_path , serves ", ("off_path", "serves")), (",", ("serves",))],
)
def test_parse(text, outcomes):
    assert parse(text) == outcomes


def test_parse_names_the_nearest_outcome():
    with pytest.raises(UsageError, match="did you mean refused"):
        parse("serves,refusd")


@pytest.mark.parametrize(
    ("findings", "expect", "stage", "contradicts"),
    [
        # The whole verdict: its outcome is one of those expected, or it is not.
        ([], "serves", None, False),
        ([], "refused", None, True),
        ([("admit", "refused")], "refused", None, False),
        ([("admit", "refused")], "serves", None, True),
        ([("route", "off_path")], "serves,off_path", None, False),
        ([("route", "abstained")], "serves", None, True),
        ([("route", "abstained")], "unknown", None, False),
        # A stage before the finding cannot contradict what the finding proves.
        ([("admit", "refused")], "serves", "detect", False),
        ([("admit", "refused")], "refused", "detect", False),
        # Its own stage, and a stage after it, do.
        ([("admit", "refused")], "serves", "admit", True),
        ([("admit", "refused")], "serves", "route", True),
        ([("detect", "refused")], "serves", "detect", True),
        # What was expected did not come, and no later stage can prove it.
        ([], "refused", "detect", False),
        ([], "refused", "admit", True),
        ([], "refused", "route", True),
        ([], "fails_to_load", "route", False),
        ([], "wrong_output", "route", False),
        # A later stage can only make it worse: off_path now may still become fails_to_load, never serves.
        ([("admit", "off_path")], "fails_to_load", "admit", False),
        ([("admit", "off_path")], "serves", "admit", True),
        ([("admit", "fails_to_load")], "off_path", "admit", True),
        # An abstention now makes serves impossible; unknown can still come where nothing stands against it.
        ([("detect", "abstained")], "serves", "detect", True),
        ([], "unknown", "detect", False),
        ([("detect", "refused")], "unknown", "detect", True),
    ],
)
def test_contradiction(findings, expect, stage, contradicts):
    assert bool(contradiction(verdict(*findings), parse(expect), stage)) is contradicts


def test_contradiction_names_the_finding():
    assert "admit.rule" in contradiction(verdict(("admit", "refused")), ("serves",))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("proven", [[], [("admit", "refused")], [("route", "off_path")], [("detect", "abstained")]])
def test_the_final_outcome_is_never_contradicted_by_a_stage(stage, proven):
    whole = verdict(*proven)
    assert contradiction(whole, (whole.outcome,), stage) is None
