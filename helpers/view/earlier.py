"""What an earlier run found about the stages that need tensors or a GPU, when it was about the same question."""

from collections.abc import Mapping
from inspect import signature

from helpers.deployment import Deployment, deployment
from helpers.findings import STAGES, Finding, Verdict, ordered

LATER_STAGES = STAGES[3:]
# The check by which a notebook says that it read the weights, and how many matrices.
AUDITED = "audit.matrices"
_DEPLOYMENT = tuple(name for name, parameter in signature(deployment).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY)


def joined(verdict: Verdict, checkpoint: str, deployed: Deployment, run: Mapping | None) -> tuple[Verdict, dict[str, str]]:
    """The verdict with the load and run stages of an earlier run, and for each stage that is still missing, why.

    run: result.json of that run, None when there is none. A notebook of it counts only when its parameters name the same
    checkpoint and mean the same deployment. A stage counts as examined when its verdict says so; findings of an audit of the
    weights count without that, because an audit is a part of loading and not all of it.
    """
    findings, examined, missing = list(verdict.findings), set(verdict.examined), {}
    same = [] if run is None else [n for n in run["notebooks"] if n.get("verdict") and _same(n["parameters"], checkpoint, deployed)]
    for stage in LATER_STAGES:
        found = next((n for n in same if n["verdict"]["stages"][stage] != "not_examined"), None)
        audit = next((n for n in same if stage == "load" and _audited(n)), None)
        if found is None and audit is None:
            missing[stage] = _reason(run, same)
            continue
        taken = _findings(found or audit, stage)
        findings += taken
        if found is not None:
            examined.add(stage)
        else:
            missing[stage] = f"weights audited ({_audited(audit)}), findings: {len(taken)}; the load by SGLang itself was not examined"
    return Verdict(ordered(dict.fromkeys(findings)), frozenset(examined)), missing


def _findings(notebook: Mapping, stage: str) -> list[Finding]:
    found = (f for f in notebook["verdict"]["findings"] if f["stage"] == stage)
    return [Finding(**{**f, "releases": tuple(f["releases"])}) for f in found]


def _audited(notebook: Mapping) -> str:
    """What the audit of the weights read, "" when there was none."""
    passed = (c for c in notebook.get("checks", ()) if c["id"] == AUDITED and c["state"] == "pass")
    return next((f"matrices: {check['observed']}" for check in passed), "")


def _same(parameters: Mapping, checkpoint: str, deployed: Deployment) -> bool:
    asked = {name: parameters[name] for name in _DEPLOYMENT if name in parameters}
    return parameters.get("checkpoint") == checkpoint and deployment(**asked) == deployed


def _reason(run: Mapping | None, same: list) -> str:
    if run is None:
        return "there is no earlier run"
    if not same:
        return "the earlier run is about another checkpoint or another deployment"
    return "no notebook of the earlier run examined it"
