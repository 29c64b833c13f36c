"""Tables of what the stages returned, as HTML that JupyterLab and nbconvert show alike. Values are escaped: see markup.py."""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

from helpers.findings import LEGEND, Finding, Verdict, ordered
from helpers.view.markup import Markup, code, command, details, escape, table
from helpers.view.palette import ADMISSION_MARKS, SEVERITY_MARKS, STAGE_MARKS, Mark


def mark(state: Mark) -> Markup:
    """The symbol in black on its colour, and the word in the reader's own text colour, so that both read in a dark theme too."""
    badge = f"background:{state.colour};color:#000;border-radius:3px;padding:0 .3em;display:inline-block;min-width:1em;text-align:center"
    symbol = f'<span aria-hidden="true" style="{badge}">{state.symbol}</span>'
    return Markup(f'<span style="white-space:nowrap">{symbol} {state.word}</span>', f"{state.symbol} {state.word}")


def findings(found: Iterable[Finding], caption: str = "Findings") -> Markup:
    """One row a finding, worst first: what it proves, why, what was read, and what to paste."""
    rows = [
        {
            "proves": mark(SEVERITY_MARKS[finding.severity]),
            "stage": Markup(f'<span style="white-space:nowrap">{finding.stage}</span>', finding.stage),
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


# The question each stage asks and the variable it reads: they differ, and nearly every surprise comes from that.
GUIDE = {
    "detect": ("What does SGLang call this checkpoint?", "both JSON copies of the quantisation config"),
    "admit": (
        "Do the arguments pass the allowlists, and what does auto become?",
        "server_args.quantization: the raw flag, or an override's",
    ),
    "route": ("Which class and which method does each layer get?", "quantized_layers and ignore, by the layer's name at run time"),
    "load": ("Do the tensors fit, and are the scales complete?", "tensors, and the runner flag of the whole server"),
    "run": ("Does the kernel compile for this GPU, is it right, is it fast?", "GPU, FlashInfer and CuTe DSL versions"),
}


def stage_guide() -> Markup:
    rows = [{"stage": name, "question": question, "variable it reads": variable} for name, (question, variable) in GUIDE.items()]
    return table(rows, "The five stages of a server start")


def stages(verdict: Verdict) -> Markup:
    """The five stages in order, and which of them this verdict passed, failed or did not examine."""
    rows = [{"stage": name, "state": mark(STAGE_MARKS[state]), "question": GUIDE[name][0]} for name, state in verdict.stages.items()]
    return table(rows, "Stages")


def verdict(reached: Verdict, title: str) -> Markup:
    """The outcome and what it means, what decided it, what to do, and what was not examined. title: what was asked."""
    state, deciding = SEVERITY_MARKS[reached.outcome], reached.deciding
    head = f'<span style="font-size:1.5em;border-left:8px solid {state.colour};padding-left:.5em">{state.symbol} <b>{state.word}</b></span>'
    lines = [Markup(f"<p>{escape(title)}</p><p>{head}<br>{escape(LEGEND[reached.outcome])}</p>", f"{title}\n{state.symbol} {state.word}")]
    if deciding:
        lines.append(Markup(f"<p>Decided by {code(deciding.id).source}: {escape(deciding.why)}</p>", deciding.why))
    if deciding and deciding.remedy:
        lines.append(Markup("<p>What to do:</p>") + command(deciding.remedy))
    missing = [stage for stage, state in reached.stages.items() if state == "not_examined"]
    if missing:
        lines.append(Markup(f"<p>Not examined: {', '.join(missing)}.</p>", f"Not examined: {', '.join(missing)}."))
    return reduce(add, [*lines, stages(reached)])


def legend() -> Markup:
    return table(
        [{"outcome": mark(SEVERITY_MARKS[name]), "meaning": meaning} for name, meaning in LEGEND.items()], "What each outcome means"
    )


def steps(taken: Iterable, caption: str = "Decision, step by step") -> Markup:
    """The decision steps of a stage: the question, what was read, the value found, and the answer that followed.

    The source has a column of its own only where it differs from step to step.
    """
    taken = list(taken)
    sources = {step.source for step in taken}
    rows = []
    for number, step in enumerate(taken, 1):
        row = {"#": number, "question": step.question, "read": code(step.read), "value": code(step.value), "answer": step.answer}
        rows.append(row | ({"source": step.source} if len(sources) > 1 else {}))
    shown = table(rows, caption)
    if len(sources) == 1:
        shown += Markup(f"<p>Source of every step: {escape(taken[0].source)}</p>", f"source: {taken[0].source}")
    return shown


def admission(result) -> Markup:
    """An Admission: the answer in one line, and the steps to it."""
    if result.accepted:
        line = f"runner {result.runner}, all-to-all {result.a2a}, ep {result.ep_size}, quantization {result.quantization}"
    else:
        line = f"{result.error}: {result.message}"
    answer = mark(ADMISSION_MARKS["accepted" if result.accepted else "refused"])
    return Markup(f"<p>{answer.source} {code(line).source}</p>", f"{answer.plain} {line}") + steps(result.steps)


def steps_compared(decisions: Mapping[str, Iterable]) -> Markup:
    """Several decisions by question, one column each; a row in which they differ is marked, also where one never got to it."""
    answers = {title: {step.question: f"{step.answer} ({step.value})" for step in taken} for title, taken in decisions.items()}
    questions = list(dict.fromkeys(question for given in answers.values() for question in given))
    rows = []
    for question in questions:
        row = {title: given.get(question) for title, given in answers.items()}
        rows.append({"": "≠" if len(set(row.values())) > 1 else "", "question": question} | row)
    return table(rows, "Answers side by side; ≠ where they differ")
