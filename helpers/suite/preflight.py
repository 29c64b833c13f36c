"""The verdict of one checkpoint on one deployment, in the terminal or as JSON."""

import argparse
import json
import sys

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment
from helpers.findings import LEGEND, Finding, ordered
from helpers.stages.verdict import Judgement, judge
from helpers.suite import expectation
from helpers.suite.alternatives import Alternative, alternatives
from helpers.suite.terminal import Page
from helpers.view.markup import visible

STATE_COLOURS = {"passed": ("green",), "failed": ("red", "bold"), "not_examined": ("yellow",)}


def main(args: argparse.Namespace) -> int:
    expected = expectation.parse(args.expect)
    asked = deployment(**values(args))
    judgement = judge(open_checkpoint(args.checkpoint), asked)
    verdict = judgement.verdict
    others = alternatives(judgement) if verdict.outcome != "serves" else []
    if args.json:
        question = {"checkpoint": args.checkpoint, "expect": list(expected)} | asked.to_dict()
        answer = {"question": question} | verdict.to_dict()
        answer |= {"resolved": resolved(judgement), "alternatives": [other.to_dict() for other in others]}
        print(json.dumps(answer, indent=2))
    else:
        page = Page(sys.stdout)
        render(page, judgement, others)
        if args.expect:
            page.line()
            page.line(f"expected {' or '.join(expected)}: {'yes' if verdict.outcome in expected else 'NO'}")
        page.write()
    return 0 if verdict.outcome in expected else 1


def resolved(judgement: Judgement) -> dict:
    """What the server would make of the question; as far as the refusal, when it refuses."""
    admission = judgement.admission
    return {
        "accepted": admission.accepted,
        "quantization": admission.model_quantization,
        "server_args_quantization": admission.quantization,
        "runner": admission.runner,
        "a2a": admission.a2a,
        "ep_size": admission.ep_size,
        "experts": [
            {"algorithm": algorithm, "method": method, "blocks": count}
            for (algorithm, method), count in judgement.routing.expert_blocks.items()
        ],
    }


def values(args: argparse.Namespace) -> dict[str, object]:
    """The deployment as plain values, only those that were given: the defaults live in helpers.deployment."""
    names = ("sglang", "runner", "a2a", "quantization", "tp", "ep", "dp", "gpu", "launch")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.env:
        given["env"] = ",".join(args.env)
    return given


def render(page: Page, judgement: Judgement, others: list[Alternative]) -> None:
    """The verdict as a reader wants it: the answer, where it was decided, why and what to do, what else would serve."""
    verdict = judgement.verdict
    colour = {"serves": ("green", "bold"), "unknown": ("yellow", "bold")}.get(verdict.outcome, ("red", "bold"))
    page.line(f"{visible(judgement.checkpoint.name)}: {judgement.deployment}")
    page.line(f"{page.paint(verdict.outcome.replace('_', ' ').upper(), *colour)}  {LEGEND[verdict.outcome]}")
    page.line()
    states = [f"{stage} {page.paint(state.replace('_', ' '), *STATE_COLOURS[state])}" for stage, state in verdict.stages.items()]
    page.field("stages", " · ".join(states), indent=0)
    page.field("resolves", _resolved(judgement), indent=0)
    for number, finding in enumerate(ordered(verdict.findings), 1):
        page.line()
        _finding(page, number, finding)
    page.line()
    page.line(judgement.not_examined)
    _alternatives(page, others)


def _resolved(judgement: Judgement) -> str:
    to = resolved(judgement)
    asked = judgement.deployment
    parts = [
        f"quantization {to['quantization']} (server_args: {to['server_args_quantization']})",
        f"runner {to['runner']}" + (f" (asked: {asked.runner})" if asked.runner != to["runner"] else ""),
        f"a2a {to['a2a']}",
        f"ep {to['ep_size']}",
    ]
    parts += [f"experts {entry['method'] or 'not quantised'} x{entry['blocks']}" for entry in to["experts"]]
    return ("" if to["accepted"] else "as far as the refusal: ") + " · ".join(parts)


def _finding(page: Page, number: int, finding: Finding) -> None:
    colour = {"note": ("dim",), "abstained": ("yellow",), "off_path": ("yellow",)}.get(finding.severity, ("red", "bold"))
    page.line(f"{number:>2} {page.paint(finding.severity.replace('_', ' '), *colour)}  {page.paint(finding.id, 'bold')} ({finding.stage})")
    for name in ("read", "observed", "expected", "why", "source", "remedy", "reference"):
        page.field(name, getattr(finding, name))


def _alternatives(page: Page, others: list[Alternative]) -> None:
    """The first change that serves, then all of them; where none does, the outcomes they have instead."""
    if not others:
        return
    page.line()
    serving = [other for other in others if other.outcome == "serves"]
    if serving:
        page.line(f"The first change that serves: {page.paint(serving[0].change, 'bold')}")
    page.line("With one value changed, everything else as asked:")
    for changed in dict.fromkeys(other.changed for other in others):
        tried = [other for other in others if other.changed == changed]
        values = ", ".join(other.value or "(not given)" for other in tried if other.outcome == "serves")
        rest = ", ".join(sorted({other.outcome for other in tried if other.outcome != "serves"}))
        page.field(changed, f"serves with {values}" if values else f"none of the {len(tried)} others serves ({rest})", label=14)
