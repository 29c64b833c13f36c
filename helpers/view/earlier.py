"""What an earlier run found about the stages that need tensors or a GPU, when it was about the same question."""

from collections.abc import Mapping
from inspect import signature

from helpers.deployment import Deployment, deployment
from helpers.findings import STAGES, Finding, Verdict, ordered

LATER_STAGES = STAGES[3:]
_DEPLOYMENT = tuple(name for name, parameter in signature(deployment).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY)


def joined(verdict: Verdict, checkpoint: str, deployed: Deployment, run: Mapping | None) -> tuple[Verdict, dict[str, str]]:
    """The verdict with the load and run stages of an earlier run, and for each stage that is still missing, why.

    run: result.json of that run, None when there is none. A notebook of it counts only when its parameters name the same
    checkpoint and mean the same deployment, and its verdict examined the stage.
    """
    findings, examined, missing = list(verdict.findings), set(verdict.examined), {}
    same = [] if run is None else [n for n in run["notebooks"] if n.get("verdict") and _same(n["parameters"], checkpoint, deployed)]
    for stage in LATER_STAGES:
        found = next((n["verdict"] for n in same if n["verdict"]["stages"][stage] != "not_examined"), None)
        if found is None:
            missing[stage] = _reason(run, same)
            continue
        examined.add(stage)
        findings += [Finding(**{**f, "releases": tuple(f["releases"])}) for f in found["findings"] if f["stage"] == stage]
    return Verdict(ordered(dict.fromkeys(findings)), frozenset(examined)), missing


def _same(parameters: Mapping, checkpoint: str, deployed: Deployment) -> bool:
    asked = {name: parameters[name] for name in _DEPLOYMENT if name in parameters}
    return parameters.get("checkpoint") == checkpoint and deployment(**asked) == deployed


def _reason(run: Mapping | None, same: list) -> str:
    if run is None:
        return "there is no earlier run"
    if not same:
        return "the earlier run is about another checkpoint or another deployment"
    return "no notebook of the earlier run examined it"
