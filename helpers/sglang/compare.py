"""Holds helpers.stages equal to the real releases: the same questions to both, and every difference named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import Folders
from helpers.deployment import Deployment, Release
from helpers.sglang.client import Answer, ModelAnswer, Worker
from helpers.sglang.matrix import Question
from helpers.stages.admission.attention import PAGE_SIZE
from helpers.stages.admit import Admission, admit
from helpers.stages.detect import detect, verify_flag
from helpers.stages.route import Routing, route

# The environment variables that Admission.env may name. A release sets others too (caches, logs, compile switches), which no
# rule of the MoE path reads.
VARIABLES = frozenset(
    (
        "SGLANG_MOE_NVFP4_DISPATCH",
        "SGLANG_OPT_FIX_MEGA_MOE_MEMORY",
        "SGLANG_MORI_EP_V2",
        "NCCL_CUMEM_ENABLE",
        "NVSHMEM_REMOTE_TRANSPORT",
        "NVSHMEM_IB_ENABLE_IBGDA",
        "NVSHMEM_DISABLE_LOCAL_ONLY_PROXY",
    )
)


SHOWN = 5  # differences that a disagreement prints


@dataclass(frozen=True)
class Disagreement:
    """One question that the model and the release answer differently. differences: field -> (model's, release's)."""

    release: str
    subject: str
    question: str
    differences: tuple[tuple[str, object, object], ...]

    @property
    def group(self) -> tuple:
        """What disagreements with one cause share: the fields, and the two answers where they are short."""
        return (self.release, tuple((name, str(model)[:90], str(real)[:90]) for name, model, real in self.differences))

    def __str__(self):
        lines = [f"\n    {name}: model {model!r}, release {real!r}" for name, model, real in self.differences[:SHOWN]]
        more = f"\n    and {len(self.differences) - SHOWN} more" if len(self.differences) > SHOWN else ""
        return f"sglang {self.release}, {self.question}{''.join(lines)}{more}"


def compare_arguments(
    worker: Worker, questions: Sequence[Question], folder: Folders
) -> Iterator[tuple[Question, dict, Disagreement | None]]:
    """Each question with the release's answer, and the disagreement if the model's is another."""
    answers = worker.arguments_of((folder(question.checkpoint), question.deployment) for question in questions)
    for question, answer in zip(questions, answers, strict=True):
        real = real_answer(answer)
        if question.checkpoint.path is None and "message" in real:  # in memory it has no folder but the one made for the release
            real["message"] = real["message"].replace(str(folder(question.checkpoint)), question.checkpoint.name)
        yield question, real, judge_arguments(question, real)


def judge_arguments(question: Question, real: dict) -> Disagreement | None:
    """What the model says otherwise than the release did. Where the model abstains from that very refusal, it says nothing."""
    checkpoint, deployment = question.checkpoint, question.deployment
    admission = admit(checkpoint, detect(checkpoint, deployment.release), deployment)
    abstains = any(finding.id == "admit.page_size" for finding in admission.findings)
    differences = _differences(model_answer(admission), real)
    if not differences or (abstains and real.get("message") == PAGE_SIZE):
        return None
    return Disagreement(deployment.release.version, checkpoint.name, str(question), differences)


def model_answer(admission: Admission) -> dict:
    """What helpers.stages says to a launch, in the fields that are compared."""
    if not admission.accepted:
        return {"accepted": False, "error": admission.error, "message": admission.message, "source": _place(admission.error_source)}
    return {
        "accepted": True,
        "quantization": admission.quantization,
        "model_quantization": admission.model_quantization,
        "runner": admission.runner,
        "a2a": admission.a2a,
        "ep_size": admission.ep_size,
        "deepep_mode": admission.deepep_mode,
        "chunked_prefill_size": admission.chunked_prefill_size,
        "disable_shared_experts_fusion": admission.disable_shared_experts_fusion,
        "dispatch_type": admission.resolution.dispatch_type,
        "attention": admission.resolution.attention,
        "env": admission.env,
    }


def _place(source: str) -> str:
    """``sglang 0.5.16 server_args.py: _handle_moe_kernel_config`` without its first two words."""
    return source.split(" ", 2)[2] if source.count(" ") >= 2 else source


def real_answer(answer: Answer) -> dict:
    """A release's answer in the same fields."""
    if not answer.accepted:
        place = f"{answer.file}: {answer.function}"
        return {"accepted": False, "error": answer.error, "message": answer.message, "source": place}
    resolved = answer.resolved
    return {
        "accepted": True,
        "quantization": answer.quantization,
        "model_quantization": answer.model_quantization,
        "runner": answer.runner,
        "a2a": answer.a2a,
        "ep_size": answer.ep_size,
        "deepep_mode": resolved["deepep_mode"],
        "chunked_prefill_size": resolved["chunked_prefill_size"],
        "disable_shared_experts_fusion": resolved["disable_shared_experts_fusion"],
        "dispatch_type": resolved.get("flashinfer_a2a_dispatch_type"),
        "attention": (resolved["attention_backend"], resolved["page_size"]),
        "env": {name: value for name, value in answer.env.items() if name in VARIABLES},
    }


UNKNOWN = (("attention", None),)  # answers by which the model says that it does not know


def _differences(model: dict, real: dict) -> tuple[tuple[str, object, object], ...]:
    if model["accepted"] != real["accepted"]:  # the other fields follow from that
        return (("accepted", model.get("message", True), real.get("message", True)),)
    return tuple((name, model[name], real[name]) for name in model if model[name] != real[name] and (name, model[name]) not in UNKNOWN)


# Runners that build every layer without a word about kernels; the second where the first is refused for W4A16 experts. The shared
# experts stay layers of their own, so that they too are asked.
BUILDERS = ("triton", "marlin")


def built_model(worker: Worker, checkpoint: Checkpoint, release: Release, folder: Folders, flag: str | None = None) -> ModelAnswer | None:
    """The model that the release builds, under ``--quantization flag`` where one is given; None where nothing can be compared.

    That is where the model does not know the names of the model class, and says so, and where the release refuses every launch:
    that is compared as a launch.
    """
    detection = detect(checkpoint, release)
    if not route(checkpoint, detection, release).known:
        return None
    given = {"quantization": flag, "disable_shared_experts_fusion": True}
    deployments = (Deployment(release, runner, **given) for runner in BUILDERS)
    deployment = next((deployment for deployment in deployments if admit(checkpoint, detection, deployment).accepted), None)
    return None if deployment is None else worker.model(folder(checkpoint), deployment)


def judge_modules(checkpoint: Checkpoint, release: Release, real: ModelAnswer, flag: str | None = None) -> Disagreement | None:
    """Where the model routes a module otherwise than the release built it."""
    detection = detect(checkpoint, release)
    routing = route(checkpoint, detection, release, verify_flag(detection, flag, release).quantization)
    differences = tuple(routing_differences(routing, real))
    question = f"{checkpoint.name}: modules" + (f" under --quantization {flag}" if flag else "")
    return Disagreement(release.version, checkpoint.name, question, differences) if differences else None


# Where a method checks the shapes it is given: the load stage's question, which the routing does not answer.
SHAPE_CHECKS = ("validate_block_quant_shapes", "validate_fp8_block_shape", "create_fp8_moe_weight_", "create_weights")


def routing_differences(routing: Routing, real: ModelAnswer) -> Iterator[tuple[str, object, object]]:
    """(what, the model's, the release's) for whatever is not equal."""
    failure = real.failure or {}
    if not real.accepted:
        failure = {"error": real.error, "message": real.message, "function": real.function}
    shapes = failure.get("function") in SHAPE_CHECKS
    if not shapes and (routing.error, routing.message) != (failure.get("error", ""), failure.get("message", "")):
        yield ("load", f"{routing.error}: {routing.message}", f"{failure.get('error', '')}: {failure.get('message', '')}")
    if real.accepted and routing.quant_config != (real.quant_config or "") and not routing.error:
        yield ("quant_config", routing.quant_config, real.quant_config)
    if routing.spec is not None and routing.spec.cls and not routing.error and real.quant_facts:
        spec, built = routing.spec, real.quant_facts | {"name": real.quant_config_name}
        block = None if spec.block is None else list(spec.block)
        model = {"name": spec.name, "min_capability": spec.min_capability, "group_size": spec.group_size, "block": block}
        yield from ((name, value, built[name]) for name, value in model.items() if built[name] not in (None, value))
    asked = {prefix: method for prefix, _, method in real.modules}
    modelled = {module.prefix: module.method or None for module in routing.modules if module.prefix in asked or not module.unless}
    compared = asked if failure or routing.error else dict.fromkeys((*asked, *modelled))  # what came before the end, else all
    for prefix in compared:
        model, built = modelled.get(prefix, "no such module"), asked.get(prefix, "no such module")
        if model != built and not (routing.error and prefix not in modelled):
            yield (prefix, model, built)
