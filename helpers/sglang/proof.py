"""A real load against the checkpoint: the proof of one block (``helpers.nvfp4.proof``), and what it and the load itself find."""

from collections.abc import Iterator
from dataclasses import dataclass

from safetensors.torch import load_file

from helpers.checkpoint import Checkpoint
from helpers.errors import InputError
from helpers.findings import Finding, ordered
from helpers.nvfp4 import proof as faults
from helpers.nvfp4.moe import Activation
from helpers.nvfp4.processed import layout_of
from helpers.nvfp4.proof import Proof, Row, prove
from helpers.nvfp4.stored import Share, Stored
from helpers.sglang.loading import LoadAnswer

NVFP4_METHOD = "ModelOptNvFp4FusedMoEMethod"
# config.json's name of the activation -> the reference layer's.
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "relu2": "relu2"}

KEEP_TRTLLM = "--moe-runner-backend flashinfer_trtllm on sglang 0.5.23, which keeps both; or export with one weight_scale_2 for both"
REPORT = "choose another --moe-runner-backend, and report this table to the SGLang project"


@dataclass(frozen=True)
class Meaning:
    """What a fault means. rule: end of the finding's id. severity: None where the output decides between wrong_output and a note."""

    rule: str
    severity: str | None
    why: str
    remedy: str


def _wrong(rule: str, why: str, remedy: str = REPORT) -> Meaning:
    return Meaning(rule, "wrong_output", why, remedy)


WEIGHTS = _wrong("weights_differ", "the kernel multiplies with other weights than the checkpoint holds")
MEANINGS = {
    faults.EXCHANGED: _wrong("gate_and_up_exchanged", "the activation is applied to up, and gate is multiplied with it"),
    faults.OTHER_EXPERT: _wrong("weights_of_another_expert", "tokens of this expert are answered by another"),
    faults.MISSING_SCALES: _wrong("block_scales_missing", "without block scales the expert contributes nothing"),
    faults.PADDING_MISPLACED: _wrong("padding_misplaced", "rows or columns of the weights meet those of the padding"),
    faults.PADDING_NOT_ZERO: Meaning("padding_not_zero", None, "what stands in the padding is multiplied with the rest", REPORT),
    faults.ROUNDED_AGAIN: Meaning(
        "block_scales_rounded_again",
        None,
        "gate and up share the larger global scale, and the other's block scales are rounded to E4M3 a second time",
        "export with one weight_scale_2 for gate and up",
    ),
    faults.GLOBALS_ROUNDED: Meaning(
        "global_scale_rounded",
        "note",
        "Marlin takes global scales in the activations' dtype: each is off by up to 0.2 %",
        "",
    ),
    faults.INPUTS_MISSING: Meaning(
        "input_scale_missing",
        None,
        "activations are quantised as if their largest magnitude were 2688: small ones fall below the smallest block scale",
        "calibrate and export again with input_scale, or serve with --moe-runner-backend marlin, which keeps activations in bfloat16",
    ),
    faults.INPUTS_LOCAL: Meaning("input_scale_of_rank", None, "every rank quantises the same tokens with another scale", REPORT),
    faults.NOT_A_NUMBER: _wrong("scale_not_a_number", "every output of the layer is infinite or not a number", "export the input scales"),
}
GLOBALS = (faults.GLOBALS_EXCHANGED, faults.GLOBALS_EXCHANGED_ROUNDED, faults.GLOBALS_LARGER)


def share_of(answer: LoadAnswer) -> Share:
    """What the rank that loaded the block holds of it. InputError where its experts are not one after another."""
    experts = answer.share["experts"]
    if experts != list(range(experts[0], experts[0] + len(experts))):
        raise InputError(f"{answer.name}: the rank holds experts {experts}; the proof reads experts that follow each other")
    return Share(experts[0], len(experts), answer.share["moe_tp_rank"], answer.share["moe_tp_size"])


def prove_load(checkpoint: Checkpoint, answer: LoadAnswer) -> Proof:
    """The proof of a block that was loaded and written out. InputError says why there is nothing to prove."""
    if not answer.accepted or answer.processed is None:
        raise InputError(f"layer {answer.layer} was not loaded: {answer.error}: {answer.message}")
    if answer.method != NVFP4_METHOD:
        raise InputError(f"layer {answer.layer} is built by {answer.method}; the proof reads NVFP4 experts")
    if answer.source is None:
        raise InputError(f"no tensor of {checkpoint.name} was written into {answer.name}")
    tensors = load_file(answer.processed)
    geometry = checkpoint.geometry
    activation = Activation(ACTIVATIONS.get(geometry.activation, "silu") if geometry.gated else "relu2")
    with Stored(checkpoint, answer.source) as stored:
        return prove(stored, tensors, layout_of(tensors, answer.facts), share_of(answer), activation)


def findings(checkpoint: Checkpoint, answer: LoadAnswer, proof: Proof | None) -> tuple[Finding, ...]:
    """What a real load and its proof say, worst first. Stage: load."""
    found = [*_failed(checkpoint, answer), *_unwritten(checkpoint, answer)]
    if proof is not None:
        found += [_finding(checkpoint, answer, proof, fault, rows) for fault, rows in proof.faults.items()]
    return ordered(found)


def _failed(checkpoint: Checkpoint, answer: LoadAnswer) -> Iterator[Finding]:
    if answer.accepted or answer.step == "prepare":
        return
    yield Finding(
        id="load.real_load_failed",
        stage="load",
        severity="fails_to_load",
        read=f"{checkpoint.name}: layer {answer.layer}, {answer.name}",
        observed=f"{answer.error}: {answer.message}",
        expected="the block is built, loaded and processed",
        why=f"the release itself stopped at the step {answer.step!r} when it was run",
        source=f"sglang {answer.release} {answer.file}: {answer.function}",
        remedy="follow the finding of the same stage that names the cause, or choose another --moe-runner-backend",
        releases=(answer.release,),
    )


def _unwritten(checkpoint: Checkpoint, answer: LoadAnswer) -> Iterator[Finding]:
    """Parameters that a load which went through left alone. Input scales are filled with 1 from 0.5.17 on; the proof says so."""
    left = {name: experts for name, experts in answer.unwritten.items() if not name.endswith("_input_scale")} if answer.accepted else {}
    if not left:
        return
    names = "; ".join(f"{name} of experts {', '.join(map(str, experts[:8]))}" for name, experts in list(left.items())[:3])
    yield Finding(
        id="load.parameter_not_written",
        stage="load",
        severity="wrong_output",
        read=f"{checkpoint.name}: layer {answer.layer}",
        observed=f"never written: {names}",
        expected="every parameter of every expert",
        why="the parameter keeps whatever the memory held, and nothing says so",
        source=f"sglang {answer.release} layers/moe/fused_moe_triton/layer.py: FusedMoE.weight_loader",
        remedy="export the checkpoint again with the tensors that are missing",
        releases=(answer.release,),
    )


def _finding(checkpoint: Checkpoint, answer: LoadAnswer, proof: Proof, fault: str, rows: tuple[Row, ...]) -> Finding:
    meaning = _meaning(fault, proof, rows)
    harmless = proof.rounded is not None and bool(proof.rounded.accepted)
    severity = meaning.severity or ("note" if harmless else "wrong_output")
    return Finding(
        id=f"load.{meaning.rule}",
        stage="load",
        severity=severity,
        read=f"{checkpoint.name}: {answer.name} as {proof.layout.name} holds it",
        observed=f"{fault}: {'; '.join(map(_where, rows))}{_distance(proof)}",
        expected="the checkpoint's own numbers",
        why=meaning.why,
        source=f"sglang {answer.release} {proof.layout.source}",
        remedy=meaning.remedy,
        releases=(answer.release,),
    )


def _meaning(fault: str, proof: Proof, rows: tuple[Row, ...]) -> Meaning:
    if fault in GLOBALS:
        one = proof.layout.factors[0] == proof.layout.factors[1]
        if fault == faults.GLOBALS_LARGER:
            return Meaning("global_scale_of_both", None, "gate and up are multiplied with the larger of their global scales", KEEP_TRTLLM)
        if one:
            why = "the kernel takes one factor for gate and up, and it is made of gate's global scale: up is off by their ratio"
            return Meaning("up_under_gates_global_scale", None, why, KEEP_TRTLLM)
        why = "the factors of gate and up have changed places: each half is off by the ratio of the two"
        return Meaning("global_scales_exchanged", None, why, KEEP_TRTLLM)
    if fault in MEANINGS:
        return MEANINGS[fault]
    if {row.what for row in rows} <= {"global scale", "input scale"}:
        return Meaning("scale_differs", None, "products or activations are scaled with another number than the checkpoint's", REPORT)
    return WEIGHTS


def _where(row: Row) -> str:
    numbers = ", ".join(map(str, row.experts[:8])) + (" …" if len(row.experts) > 8 else "")
    experts = f", expert{'s' if len(row.experts) > 1 else ''} {numbers}" if row.experts else ""
    return f"{row.what} of {row.projection}, {row.differing:,} of {row.compared:,}{experts}"


def _distance(proof: Proof) -> str:
    if proof.output is None:
        return "; the layer has no finite output"
    return f"; the reference layer's output is {float(proof.output.relative_l2):.2g} of itself away"
