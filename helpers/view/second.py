"""vLLM's answer beside SGLang's, for the same configuration and GPU. Shown only: no check hangs on it, and nothing here raises.

What of vLLM is real and what is simulated: helpers.vllm.ask, REAL and SIMULATED.
"""

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import folders
from helpers.deployment import Deployment
from helpers.stages.verdict import Judgement
from helpers.view.markup import Markup, details, escape, table
from helpers.vllm.ask import SIMULATED, Answer, Question, ask
from helpers.vllm.environment import VERSION, built


def beside_sglang(oracle: str, checkpoint: Checkpoint, deployed: Deployment, judgement: Judgement) -> Markup:
    """The two side by side, and why vLLM chose its backend; or one sentence that says why it was not asked.

    oracle: "off" asks nothing. Otherwise about 20 seconds of a core when vLLM is built (`make vllm`).
    """
    if oracle == "off":
        return _sentence(f"vLLM {VERSION} was not asked: oracle is off. It needs `make vllm` once, then ORACLE=auto (or -p oracle=auto).")
    if built() is None:
        return _sentence(f"vLLM {VERSION} was not asked, because it is not built: make vllm")
    if deployed.dp > 1:
        return _sentence(f"vLLM {VERSION} was not asked: the question is put for one data-parallel rank, and dp is {deployed.dp}.")
    try:
        with folders() as folder:
            (answer,) = ask([Question(folder(checkpoint), deployed.tp, deployed.ep)], deployed.gpu)
    except Exception as error:  # noqa: BLE001  another server's trouble must not fail a notebook about SGLang
        return _sentence(f"vLLM {VERSION} was not asked: {type(error).__name__}: {error}")
    return shown(answer, deployed, judgement)


def shown(answer: Answer, deployed: Deployment, judgement: Judgement) -> Markup:
    """An answer as two tables, and what was simulated for it."""
    compared = table(rows(answer, deployed, judgement), f"{deployed.gpu}, tp {deployed.tp}, ep {deployed.ep}; SGLang by the model here")
    tried = [
        {"layers": one.count, "#": number, "backend": step.backend, "kernel": step.kernel, "answer": step.reason or "chosen"}
        for one in answer.selections
        for number, step in enumerate(one.tried, 1)
    ]
    order = table(tried, "vLLM's NVFP4 backends in its own order, with its reasons")
    said = f"Simulated: {SIMULATED}."
    return compared + order + details("What was simulated", Markup(f"<p>{escape(said)}</p>", said))


def rows(answer: Answer, deployed: Deployment, judgement: Judgement) -> list[dict[str, str]]:
    """One row a question, a column for each server."""
    admission = judgement.admission
    methods = dict.fromkeys(str(module.method) for module in judgement.routing.modules if module.kind == "experts")
    theirs, ours = f"vLLM {answer.vllm}", f"SGLang {deployed.release}"
    refused = f"{answer.outcome}: {answer.error}: {answer.message} ({answer.source})"
    requested = answer.selections[0].requested.get(deployed.runner) if answer.selections else None
    found = [
        ("outcome", "accepted" if admission.accepted else f"refused: {admission.error}", answer.outcome if answer.accepted else refused),
        ("detected quantisation", admission.model_quantization, answer.quantization),
        (
            "method of the experts",
            ", ".join(methods),
            ", ".join(dict.fromkeys(one.method for one in answer.experts)) or _no_experts(answer),
        ),
        ("backend of the experts", admission.runner, answer.backends),
    ]
    if requested is not None:
        found.append((f"{deployed.runner}, asked for by name", admission.runner, requested["backend"] or requested["error"]))
    return [{"question": question, ours: str(one or "none"), theirs: str(other or "none")} for question, one, other in found]


def _no_experts(answer: Answer) -> str:
    return "none: no expert layer is built" if answer.accepted else "not reached"


def _sentence(text: str) -> Markup:
    return Markup(f"<p>{escape(text)}</p>", text)
