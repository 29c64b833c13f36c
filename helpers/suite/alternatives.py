"""What would serve instead: the same question with one value changed."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from helpers.deployment import RELEASES, Deployment, Release, a2a_backends, quantizations, runners
from helpers.stages.verdict import Judgement, judge

# How a reader makes each change, the smallest first. The release comes last: it changes more than one value.
FLAGS = {
    "env": "",
    "deepep_mode": "--deepep-mode",
    "runner": "--moe-runner-backend",
    "quantization": "--quantization",
    "a2a": "--moe-a2a-backend",
    "sglang": "pip install sglang==",
}
# The names of --quantization that mean ModelOpt. The flag can pass an allowlist that the checkpoint's own name does not.
MODELOPT = (None, "modelopt", "modelopt_fp4", "modelopt_mixed")
# The runners that people use for these checkpoints, in the order in which to try them; the others come after.
USUAL = ("auto", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass", "flashinfer_cutedsl", "marlin", "triton")
VARIABLE = re.compile(r"\b(SGLANG_[A-Z0-9_]+)=([\w./-]+)")


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
        return FLAGS[self.changed] + ("" if self.changed in ("sglang", "env") else " ") + self.value

    def to_dict(self) -> dict[str, str | None]:
        return {"changed": self.changed, "value": self.value, "outcome": self.outcome}


def alternatives(judgement: Judgement) -> list[Alternative]:
    """Every change of one value that is worth a try, smallest first: the variables that the findings name, DeepEP's low-latency
    mode, then every other runner, ModelOpt flag and a2a backend of the release, then every other release.
    """
    remedies = [finding.remedy for finding in judgement.verdict.findings]
    tried = _neighbours(judgement.deployment, remedies)
    return [Alternative(changed, value, judge(judgement.checkpoint, other).verdict.outcome) for changed, value, other in tried]


def _neighbours(asked: Deployment, remedies: Iterable[str]) -> Iterator[tuple[str, str | None, Deployment]]:
    for name, value in dict.fromkeys(pair for remedy in remedies for pair in VARIABLE.findall(remedy)):
        env = tuple(sorted((asked.environment | {name: value}).items()))
        if env != asked.env:
            yield "env", f"{name}={value}", replace(asked, env=env)
    if asked.a2a == "deepep" and asked.deepep_mode != "low_latency":
        yield "deepep_mode", "low_latency", replace(asked, deepep_mode="low_latency")
    for runner in sorted(runners(asked.release), key=_rank):
        if runner != asked.runner:
            yield "runner", runner, replace(asked, runner=runner)
    for name in MODELOPT:
        if name != asked.quantization and (name is None or name in quantizations(asked.release)):
            yield "quantization", name, replace(asked, quantization=name)
    for a2a in a2a_backends(asked.release):
        if a2a != asked.a2a:
            yield "a2a", a2a, replace(asked, a2a=a2a)
    for release in RELEASES:
        if release != asked.release and _knows(release, asked):
            yield "sglang", release.version, replace(asked, release=release)


def _rank(runner: str) -> tuple[int, bool]:
    return (USUAL.index(runner) if runner in USUAL else len(USUAL), runner.startswith("experimental_"))


def _knows(release: Release, asked: Deployment) -> bool:
    """Does the release have the values asked? replace() does not validate what it is given."""
    quantization = asked.quantization is None or asked.quantization in quantizations(release)
    return quantization and asked.runner in runners(release) and asked.a2a in a2a_backends(release)
