"""The verdict: detect, admit and route in one call, and a sweep over many deployments of one checkpoint."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from helpers.checkpoint import Checkpoint
from helpers.deployment import Deployment
from helpers.findings import Finding, Verdict, ordered
from helpers.stages.admit import Admission, admit
from helpers.stages.consequences import consequences
from helpers.stages.detect import Detection, detect
from helpers.stages.route import Routing, route

EXAMINED = frozenset({"detect", "admit", "route"})


@dataclass(frozen=True, eq=False)
class Judgement:
    """One checkpoint on one deployment: what each stage found, and the verdict."""

    checkpoint: Checkpoint
    deployment: Deployment
    detection: Detection
    admission: Admission
    routing: Routing
    verdict: Verdict

    @property
    def not_examined(self) -> str:
        """One sentence: the stages, files and flags that no rule looked at."""
        parts = ["loading the weights and running the kernels"]
        if self.checkpoint.tensors is None:
            parts.append("the tensors, because only the configuration was given")
        if self.deployment.speculative_algorithm:
            parts.append("speculative decoding's own rules (most of them) and its draft model")
        if self.deployment.unexamined:
            parts.append(f"the flags {', '.join(self.deployment.unexamined)}")
        return f"Not examined: {'; '.join(parts)}."


@lru_cache(maxsize=512)
def _read(checkpoint: Checkpoint, version: str) -> tuple[Finding, ...]:
    """What reading the checkpoint found that holds for this release: a missing shard, for one, means something else in each."""
    return tuple(finding for finding in checkpoint.findings if not finding.releases or version in finding.releases)


def judge(checkpoint: Checkpoint, deployment: Deployment) -> Judgement:
    """Ask the three stages that need no weights. Detection and routing are computed once for a checkpoint and release.

    A refused server routes nothing, but its layers are routed here all the same: what they would get is worth knowing before the
    flag is changed.
    """
    detection = detect(checkpoint, deployment.release)
    admission = admit(checkpoint, detection, deployment)
    routing = route(checkpoint, detection, deployment.release, admission.model_quantization)
    findings = _read(checkpoint, deployment.release.version) + detection.findings + admission.findings + routing.findings
    findings += consequences(checkpoint, detection, admission, routing, deployment)
    return Judgement(checkpoint, deployment, detection, admission, routing, Verdict(ordered(findings), EXAMINED))


def sweep(checkpoint: Checkpoint, deployments: Iterable[Deployment]) -> Iterator[Judgement]:
    """The judgement of each deployment, in order; at least 5,000 a second once a release has been routed."""
    return (judge(checkpoint, deployment) for deployment in deployments)
