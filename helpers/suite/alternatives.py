"""What would serve instead: the same question with another MoE runner, and on the other releases."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from helpers.checkpoint import Checkpoint
from helpers.deployment import RELEASES, Deployment, runners
from helpers.stages.verdict import judge


@dataclass(frozen=True)
class Alternative:
    """A deployment that differs from the one asked in one value (`changed`: "runner" or "sglang"), and its outcome."""

    changed: str
    value: str
    outcome: str

    def to_dict(self) -> dict[str, str]:
        return {"changed": self.changed, "value": self.value, "outcome": self.outcome}


def alternatives(checkpoint: Checkpoint, asked: Deployment) -> list[Alternative]:
    """Every other runner of the release asked, then every other release with the runner asked where it knows that runner."""
    return [Alternative(changed, value, judge(checkpoint, other).verdict.outcome) for changed, value, other in _neighbours(asked)]


def _neighbours(asked: Deployment) -> Iterator[tuple[str, str, Deployment]]:
    for runner in runners(asked.release):
        if runner != asked.runner:
            yield "runner", runner, replace(asked, runner=runner)
    for release in RELEASES:
        if release != asked.release and asked.runner in runners(release):
            yield "sglang", release.version, replace(asked, release=release)
