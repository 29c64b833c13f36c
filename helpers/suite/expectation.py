"""`expect`: the outcomes that a user says are right, and when a verdict contradicts them.

It decides the exit code: without it only ``serves`` is right. A notebook about one stage must not fail because of a stage
after its own, so it asks only whether an expected outcome is still possible after the findings up to its stage.
"""

from helpers.errors import unknown
from helpers.findings import OUTCOMES, PROVABLE, STAGES, Verdict

# The last stage that can prove each outcome. An outcome that was expected and whose last stage has passed was not met.
LAST_STAGE = {
    "refused": "admit",
    "fails_to_load": "load",
    "fails_at_first_forward": "run",
    "wrong_output": "run",
    "off_path": "run",
}


def parse(expect: str) -> tuple[str, ...]:
    """ "refused, off_path" -> ("refused", "off_path"); "" -> ("serves",). UsageError for a name that is not an outcome."""
    names = tuple(name.strip() for name in expect.split(",") if name.strip()) or ("serves",)
    for name in names:
        if name not in OUTCOMES:
            raise unknown("outcome", name, OUTCOMES)
    return names


def contradiction(verdict: Verdict, expected: tuple[str, ...], stage: str | None = None) -> str | None:
    """Why the verdict, as far as `stage` (all of it for None), rules out every expected outcome; None when it does not."""
    if stage is None:
        if verdict.outcome in expected:
            return None
        return f"the outcome is {verdict.outcome}{_because(verdict)}, expected {' or '.join(expected)}"
    upto = STAGES[: STAGES.index(stage) + 1]
    seen = Verdict(tuple(finding for finding in verdict.findings if finding.stage in upto), verdict.examined & set(upto))
    if any(_possible(outcome, seen, stage) for outcome in expected):
        return None
    return f"up to the stage {stage} the outcome is {seen.outcome}{_because(seen)}: {' or '.join(expected)} cannot follow"


def _possible(outcome: str, seen: Verdict, stage: str) -> bool:
    if outcome == seen.outcome:
        return True
    if outcome not in PROVABLE:
        # "unknown" can still come from a later rule that abstains; "serves" cannot come back once something stands against it.
        return outcome == "unknown" and seen.outcome == "serves"
    worse = seen.outcome not in PROVABLE or PROVABLE.index(outcome) < PROVABLE.index(seen.outcome)
    return worse and STAGES.index(LAST_STAGE[outcome]) > STAGES.index(stage)


def _because(verdict: Verdict) -> str:
    return f" ({verdict.deciding.id})" if verdict.deciding else ""
