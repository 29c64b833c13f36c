"""Asks the real vLLM what it makes of checkpoints on one GPU: what it detects, the method of the experts, the backend, and why.

(answer,) = ask([Question(folder)], gpu("B200"))
answer.quantization             # "modelopt_fp4"
answer.selections[0].tried      # every kernel class in vLLM's order, and its reason for each one passed over
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.deployment import Gpu
from helpers.errors import InputError, UsageError
from helpers.vllm import environment

INSIDE = Path(__file__).resolve().parent / "inside" / "ask_vllm.py"
START_SECONDS = 300
QUESTION_SECONDS = 120

REAL = (
    "vLLM's own code: EngineArgs, ModelConfig and its detection, the quantisation config, the constructors of the model with its expert "
    "layers (shapes without memory), select_nvfp4_moe_backend, and FlashInfer's own Python package, which it looks for"
)
SIMULATED = (
    "the GPU's answers (capability, name, memory, count, 148 multiprocessors), the CUDA version where torch is a CPU build, Triton's "
    "driver, the other ranks; that FlashInfer's compiled kernels are downloaded and DeepGEMM's are there; vLLM's compiled libraries and "
    "torchvision (empty modules); attention's own backend (one is taken unasked); no kernel runs and no weight is read"
)


@dataclass(frozen=True)
class Question:
    """One launch. folder: with config.json. tp: tensor-parallel ranks. ep: 1, or tp (vLLM spreads experts over all ranks or none)."""

    folder: Path
    tp: int = 1
    ep: int = 1
    moe_backend: str = "auto"

    def __post_init__(self):
        if self.tp < 1 or self.ep < 1:
            raise UsageError(f"tp {self.tp}, ep {self.ep}: sizes count from 1")
        if self.ep not in (1, self.tp):
            raise UsageError(f"ep {self.ep} with tp {self.tp}: vLLM's --enable-expert-parallel spreads experts over all {self.tp} ranks")


@dataclass(frozen=True)
class Experts:
    """Expert layers that got the same. method: the class of the quantisation method; backend, kernel: None where it has none."""

    count: int
    layers: tuple[str, ...]
    method: str
    backend: str | None
    kernel: str | None


@dataclass(frozen=True)
class Tried:
    """What one kernel class said to a layer's configuration. reason: vLLM's words, "" when it is supported."""

    backend: str
    kernel: str
    supported: bool
    reason: str


@dataclass(frozen=True)
class Selection:
    """One run of select_nvfp4_moe_backend, for `count` layers that are alike.

    chosen: (backend, kernel class), None when vLLM raised. requested: what each name of --moe-backend would come to for these layers,
    {"backend", "kernel", "error"}.
    """

    count: int
    weights: str
    activations: str | None
    tried: tuple[Tried, ...]
    chosen: tuple[str, str] | None
    requested: dict[str, dict] = field(default_factory=dict)

    @property
    def passed_over(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if not one.supported)


@dataclass(frozen=True)
class Answer:
    """What vLLM answered to one Question.

    stage: where it stopped, "detect" or "build"; "" when it did not. error, message, source: the exception and the line of vLLM.
    simulation: the exception belongs to this machine and not to vLLM, so the question was not answered (in whole).
    quantization: ModelConfig.quantization, None when nothing is detected. assumed: compiled predicates that were answered yes.
    stood_for: empty modules that were imported. operators: handles on compiled operators that constructors kept.
    """

    vllm: str
    accepted: bool
    stage: str = ""
    quantization: str | None = None
    quant_config: str | None = None
    architectures: tuple[str, ...] = ()
    model_class: str | None = None
    experts: tuple[Experts, ...] = ()
    selections: tuple[Selection, ...] = ()
    error: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    simulation: bool = False
    assumed: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    stood_for: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """``file:line function`` inside vLLM."""
        return f"{self.file}:{self.line} {self.function}" if self.file else ""

    @property
    def outcome(self) -> str:
        """accepted, refused, or not asked: a simulation that falls short is neither."""
        return "accepted" if self.accepted else "not asked" if self.simulation else "refused"

    @property
    def backends(self) -> str:
        """The NVFP4 backends that were chosen, in the order of the layers; "" when no NVFP4 selection ran."""
        return ", ".join(dict.fromkeys(one.chosen[0] if one.chosen else "none" for one in self.selections))


def ask(questions: Sequence[Question], gpu: Gpu, seconds: int = QUESTION_SECONDS) -> list[Answer]:
    """The answers, in order. About 15 seconds of a core for the first and 2 to 10 for each other one, and 1 GB.

    seconds: the limit of one question; one that reaches it is answered with the error "Timeout". UsageError when vLLM is not built,
    InputError when its process does not start.
    """
    python = environment.python()
    machine = {"name": gpu.name, "capability": list(gpu.capability), "memory_mib": gpu.memory_mib}
    request = {
        "gpu": machine | {"count": max(8, *(one.tp for one in questions), 1)},
        "questions": [
            {
                "folder": str(Path(one.folder).resolve()),
                "tp": one.tp,
                "expert_parallel": one.ep > 1,
                "moe_backend": one.moe_backend,
                "seconds": seconds,
            }
            for one in questions
        ],
    }
    lines, last_words = _run([python, "-s", str(INSIDE)], json.dumps(request), START_SECONDS + len(questions) * (seconds + 10))
    if len(lines) < len(questions):
        raise InputError(f"vllm {environment.VERSION} gave {len(lines)} of {len(questions)} answers: {last_words}")
    return [answer_of(json.loads(line)) for line in lines]


def _run(command: list[str], text: str, seconds: int) -> tuple[list[str], str]:
    """The lines it printed, and the last one of its stderr. Its forks end with it."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment.variables(),
            cwd=tempfile.gettempdir(),  # a folder named vllm beside the asker would be imported
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            return [], f"nothing within {seconds} seconds"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    return printed.splitlines(), said[-1] if said else "it printed nothing"


def answer_of(said: dict) -> Answer:
    """The process's answer as a record."""
    experts = tuple(Experts(**one | {"layers": tuple(one["layers"])}) for one in said.get("experts", ()))
    selections = tuple(
        Selection(
            one["count"],
            one["weights"],
            one["activations"],
            tuple(Tried(*tried) for tried in one["tried"]),
            tuple(one["chosen"]) if one["chosen"] else None,
            one["requested"],
        )
        for one in said.get("selections", ())
    )
    plain = ("architectures", "assumed", "operators", "stood_for")
    rest = {name: value for name, value in said.items() if name not in ("experts", "selections", *plain)}
    return Answer(
        vllm=environment.VERSION,
        experts=experts,
        selections=selections,
        **{name: tuple(said.get(name, ())) for name in plain},
        **rest,
    )
