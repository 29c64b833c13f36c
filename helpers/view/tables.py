"""Tables of what the stages returned, as HTML that JupyterLab and nbconvert show alike. Values are escaped: see markup.py."""

from collections.abc import Iterable, Mapping

from helpers.findings import LEGEND, Finding, Verdict, ordered
from helpers.view.markup import Markup, code, details, escape, table
from helpers.view.palette import SEVERITY_MARKS, STAGE_MARKS, Mark


def mark(state: Mark) -> Markup:
    """Symbol in its colour and the word in the reader's own text colour, so that it reads in a dark theme too."""
    symbol = f'<span aria-hidden="true" style="color:{state.colour};font-weight:700">{state.symbol}</span>'
    return Markup(f'<span style="white-space:nowrap">{symbol} {state.word}</span>', f"{state.symbol} {state.word}")


def findings(found: Iterable[Finding], caption: str = "Findings") -> Markup:
    """One row a finding, worst first: what it proves, why, what was read, and what to paste."""
    rows = [
        {
            "proves": mark(SEVERITY_MARKS[finding.severity]),
            "stage": finding.stage,
            "what and why": _what(finding),
            "remedy": code(finding.remedy) if finding.remedy else None,
        }
        for finding in ordered(found)
    ]
    return table(rows, caption)


def _what(finding: Finding) -> Markup:
    seen = table(
        [
            {
                "id": code(finding.id),
                "read": finding.read,
                "observed": finding.observed,
                "expected": finding.expected,
                "source": finding.source,
                "reference": finding.reference or None,
                "releases": ", ".join(finding.releases) or None,
            }
        ]
    )
    summary = f"{finding.observed}; expected {finding.expected}"
    return Markup(f"{escape(finding.why)}<br>", finding.why) + details(summary, seen)


def stages(verdict: Verdict, questions: Mapping[str, str] | None = None) -> Markup:
    """The five stages in order, and which of them this verdict passed, failed or did not examine."""
    rows = []
    for stage, state in verdict.stages.items():
        row = {"stage": stage, "state": mark(STAGE_MARKS[state])}
        rows.append(row | ({"question": questions[stage]} if questions else {}))
    return table(rows, "Stages of a server start")


def legend() -> Markup:
    return table(
        [{"outcome": mark(SEVERITY_MARKS[name]), "meaning": meaning} for name, meaning in LEGEND.items()], "What each outcome means"
    )


def steps(taken: Iterable, caption: str = "Decision, step by step") -> Markup:
    """The decision steps of a stage: the question, what was read, the value found, and the answer that followed."""
    rows = [
        {"#": number, "question": s.question, "read": code(s.read), "value": code(s.value), "answer": s.answer, "source": s.source}
        for number, s in enumerate(taken, 1)
    ]
    return table(rows, caption)
