"""What would serve instead: the same question with one value changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from helpers.checkpoint import Checkpoint
from helpers.deployment import RELEASES, Deployment, Release, a2a_backends, quantizations, runners
from helpers.stages.verdict import judge

# How a reader makes each change, cheapest first. The release comes last: it changes more than one value.
FLAGS = {"runner": "--moe-runner-backend", "a2a": "--moe-a2a-backend", "quantization": "--quantization", "sglang": "pip install sglang=="}
# The names of --quantization that mean ModelOpt. The flag can pass an allowlist that the checkpoint's own name does not.
MODELOPT = (None, "modelopt", "modelopt_fp4", "modelopt_mixed")


@dataclass(frozen=True)
class Alternative:
    """A deployment that differs from the one asked in one value, and its outcome. changed: a key of FLAGS; value: None for no flag."""

    changed: str
    value: str | None
    outcome: str

    @property
    def change(self) -> str:
        """What to type."""
        if self.value is None:
            return f"leave out {FLAGS[self.changed]}"
        return FLAGS[self.changed] + ("" if self.changed == "sglang" else " ") + self.value

    def to_dict(self) -> dict[str, str | None]:
        return {"changed": self.changed, "value": self.value, "outcome": self.outcome}


def alternatives(checkpoint: Checkpoint, asked: Deployment) -> list[Alternative]:
    """Every other runner, a2a backend and ModelOpt quantization flag of the release asked, then every other release."""
    return [Alternative(changed, value, judge(checkpoint, other).verdict.outcome) for changed, value, other in _neighbours(asked)]


def _neighbours(asked: Deployment) -> Iterator[tuple[str, str | None, Deployment]]:
    for runner in runners(asked.release):
        if runner != asked.runner:
            yield "runner", runner, replace(asked, runner=runner)
    for a2a in a2a_backends(asked.release):
        if a2a != asked.a2a:
            yield "a2a", a2a, replace(asked, a2a=a2a)
    for name in MODELOPT:
        if name != asked.quantization and (name is None or name in quantizations(asked.release)):
            yield "quantization", name, replace(asked, quantization=name)
    for release in RELEASES:
        if release != asked.release and _knows(release, asked):
            yield "sglang", release.version, replace(asked, release=release)


def _knows(release: Release, asked: Deployment) -> bool:
    """Does the release have the values asked? replace() does not validate what it is given."""
    quantization = asked.quantization is None or asked.quantization in quantizations(release)
    return quantization and asked.runner in runners(release) and asked.a2a in a2a_backends(release)
