"""A finding is one thing the suite proves about a checkpoint on a deployment; a verdict is all of them and one outcome.

The names of the stages and of the outcomes here are the only ones used anywhere: command line, notebooks, JSON, tests.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

STAGES = ("detect", "admit", "route", "load", "run")

# The outcomes a finding can prove, worst first: the first one proven is the verdict's.
PROVABLE = ("refused", "fails_to_load", "fails_at_first_forward", "wrong_output", "off_path")
OUTCOMES = (*PROVABLE, "unknown", "serves")
SEVERITIES = (*PROVABLE, "abstained", "note")

LEGEND = {
    "refused": "the server exits while it checks its arguments",
    "fails_to_load": "the server exits while it builds or loads the model",
    "fails_at_first_forward": "the server loads and dies at the first forward pass (autotune or warm-up)",
    "wrong_output": "the server answers, and the answers are wrong",
    "off_path": "serves, but slower or with more bytes than the checkpoint was made for",
    "unknown": "a rule that could block had too little information",
    "serves": "nothing that was examined stands against it",
}


@dataclass(frozen=True)
class Finding:
    """One proven (or abstained) statement. A "no" without a reason cannot be constructed.

    id: stable and dotted, ``stage.rule``. stage: one of STAGES. severity: the outcome this proves, "abstained" (a rule that
    could block had too little information) or "note". releases: the SGLang releases it holds for. read: file, key or tensor
    that was looked at. source: ``sglang RELEASE file: function`` or the file that says so. remedy: a command, flag or edit
    to paste. reference: public thread, or "".
    """

    id: str
    stage: str
    severity: str
    read: str
    observed: str
    expected: str
    why: str
    source: str
    remedy: str
    reference: str = ""
    releases: tuple[str, ...] = ()

    def __post_init__(self):
        if self.stage not in STAGES:
            raise ValueError(f"finding {self.id!r}: stage {self.stage!r} is not one of {STAGES}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"finding {self.id!r}: severity {self.severity!r} is not one of {SEVERITIES}")
        required = ("id", "read", "observed", "expected", "why", "source")
        if self.severity in PROVABLE:
            required += ("remedy",)
        empty = [name for name in required if not getattr(self, name)]
        if empty:
            raise ValueError(f"finding {self.id!r} ({self.severity}) lacks {', '.join(empty)}")


@dataclass(frozen=True)
class Verdict:
    """Ordered findings of one checkpoint on one deployment, and what follows from them.

    examined: the stages whose rules were all asked. A stage is "failed" when a finding of it proves an outcome, "passed"
    when it was examined and none did and none abstained, else "not_examined".
    """

    findings: tuple[Finding, ...]
    examined: frozenset[str] = field(default_factory=frozenset)

    @property
    def deciding(self) -> Finding | None:
        """The first finding of the worst severity present, or None when nothing stands against serving."""
        for severity in (*PROVABLE, "abstained"):
            for finding in self.findings:
                if finding.severity == severity:
                    return finding
        return None

    @property
    def outcome(self) -> str:
        deciding = self.deciding
        if deciding is None:
            return "serves"
        return "unknown" if deciding.severity == "abstained" else deciding.severity

    @property
    def stage(self) -> str | None:
        return self.deciding.stage if self.deciding else None

    @property
    def stages(self) -> dict[str, str]:
        return {stage: self._state(stage) for stage in STAGES}

    def _state(self, stage: str) -> str:
        severities = {finding.severity for finding in self.findings if finding.stage == stage}
        if severities & set(PROVABLE):
            return "failed"
        return "passed" if stage in self.examined and "abstained" not in severities else "not_examined"

    def to_dict(self) -> dict:
        """The object that ``--json`` prints and ``result.json`` holds: plain JSON types only."""
        return {
            "outcome": self.outcome,
            "stage": self.stage,
            "stages": self.stages,
            "findings": [asdict(finding) | {"releases": list(finding.releases)} for finding in self.findings],
        }


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings in the order a reader wants them: worst severity first, then by stage; otherwise as found."""
    return tuple(sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), STAGES.index(f.stage))))
