"""Asks real SGLang releases: one long-lived worker process a release.

with Worker("0.5.15") as worker:
    worker.arguments(folder, deployment).message     # what the release says to this launch
    worker.routing(folder, modules).methods          # which method each module gets
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.deployment import Deployment
from helpers.errors import UsageError
from helpers.sglang.environments import Environment, environment

INSIDE = Path(__file__).resolve().parent / "inside"

REAL = (
    "the release's own code: command line parser, argument resolution and checks, ModelConfig, config classes of its transformers pin, "
    "quantization config, name mapper, get_moe_impl_class, get_quant_method"
)
SIMULATED = (
    "the GPU's answers (capability, name, memory, count), nvidia-smi, the CUDA version where torch is a CPU build, and the presence of "
    "FlashInfer; no kernel runs and no weight is read"
)

START_SECONDS = 600
QUESTION_SECONDS = 60
WINDOW = 64  # questions under way at once; well below what the pipes hold


@dataclass(frozen=True)
class Reply:
    """What every question is answered with.

    error, message: the exception's type and whole text ("" when accepted); a hang is "Timeout", a dead worker "WorkerDied".
    source: ``file:line function`` inside sglang/srt. env: environment variables the question set (None: removed).
    note: says so when the transformers is not the release's own pin.
    """

    release: str
    accepted: bool
    error: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    model_quantization: str | None = None
    env: dict = field(default_factory=dict)
    note: str = ""

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line} {self.function}" if self.file else ""


@dataclass(frozen=True)
class Answer(Reply):
    """What a release answered to one launch. resolved: the resolved fields of worker_arguments.FIELDS."""

    resolved: dict = field(default_factory=dict)

    @property
    def quantization(self) -> str | None:
        return self.resolved.get("quantization")

    @property
    def runner(self) -> str | None:
        return self.resolved.get("moe_runner_backend")

    @property
    def a2a(self) -> str | None:
        return self.resolved.get("moe_a2a_backend")

    @property
    def ep_size(self) -> int | None:
        return self.resolved.get("ep_size")


@dataclass(frozen=True)
class PreparedReply(Reply):
    """What is settled before the first layer is built: the classes of the model, of its quantization config and of its MoE layers.

    quant_facts: the quantization config's {"min_capability", "group_size", "block"}, {} without one.
    """

    model_class: str | None = None
    quant_config: str | None = None
    quant_config_name: str | None = None
    moe_class: str | None = None
    quant_facts: dict = field(default_factory=dict)


@dataclass(frozen=True)
class RoutingAnswer(PreparedReply):
    """What a release makes of each module. methods[i]: class name, None, or {"error", "message", …}, for modules[i] of the question."""

    methods: tuple = ()


@dataclass(frozen=True)
class ModelAnswer(PreparedReply):
    """The model that a release builds. modules: (runtime prefix, layer class, method class or None), in the order of construction.

    experts: the MoE layers, each {"name", "layer", "method", "deprecate_flag", "runner"} and the rank's share of it:
    {"num_local_experts", "intermediate_size_per_partition", "experts" (their numbers in the model), "moe_ep_size", "moe_ep_rank",
    "moe_tp_size", "moe_tp_rank"}. failure: the exception that ended the construction as {"error", "message", "file", …}, or None;
    modules then hold what came before, and experts nothing.
    """

    modules: tuple[tuple[str, str, str | None], ...] = ()
    experts: tuple[dict, ...] = ()
    failure: dict | None = None


def gpu_of(deployment: Deployment) -> dict:
    """The machine a worker simulates for this deployment: its GPU, as many as its ranks need, at least 8."""
    gpu = deployment.gpu
    return {"name": gpu.name, "capability": list(gpu.capability), "memory_mib": gpu.memory_mib, "count": max(8, deployment.tp)}


# Deployment field -> flag; a field at its default is not given, as on a real command line.
FLAGS = {
    "runner": "--moe-runner-backend",
    "a2a": "--moe-a2a-backend",
    "quantization": "--quantization",
    "tp": "--tp-size",
    "ep": "--ep-size",
    "dp": "--dp-size",
    "deepep_mode": "--deepep-mode",
    "max_prefill_tokens": "--max-prefill-tokens",
    "chunked_prefill_size": "--chunked-prefill-size",
    "cuda_graph_max_bs": "--cuda-graph-max-bs",
    "flashinfer_a2a_dispatch_type": "--flashinfer-a2a-dispatch-type",
    "speculative_algorithm": "--speculative-algorithm",
    "speculative_num_steps": "--speculative-num-steps",
    "speculative_eagle_topk": "--speculative-eagle-topk",
    "speculative_num_draft_tokens": "--speculative-num-draft-tokens",
    "speculative_moe_runner_backend": "--speculative-moe-runner-backend",
    "speculative_moe_a2a_backend": "--speculative-moe-a2a-backend",
}
SWITCHES = {"enable_dp_attention": "--enable-dp-attention", "disable_shared_experts_fusion": "--disable-shared-experts-fusion"}
_DEFAULT = Deployment()


def argv_of(folder: str | os.PathLike, deployment: Deployment) -> list[str]:
    """The launch command's arguments for this deployment (without ``python -m sglang.launch_server``)."""
    argv = ["--model-path", str(folder)]
    for name, flag in FLAGS.items():
        value = getattr(deployment, name)
        if value != getattr(_DEFAULT, name):
            if name == "cuda_graph_max_bs" and deployment.release.at_least("0.5.20"):
                flag = "--cuda-graph-max-bs-decode"  # the old name is gone
            argv += [flag, str(value)]
    return argv + [flag for name, flag in SWITCHES.items() if getattr(deployment, name)]


def build_request(question: str, folder: str | os.PathLike, deployment: Deployment, rank: int) -> dict:
    if not 0 <= rank < deployment.tp:
        raise UsageError(f"rank {rank} is not one of the {deployment.tp} ranks of --tp-size; they count from 0")
    return {
        "question": question,
        "argv": argv_of(folder, deployment),
        "gpu": gpu_of(deployment),
        "env": deployment.environment,
        "rank": rank,
    }


class Worker:
    """A release's process. Starts at the first question, restarts after a question killed it."""

    def __init__(self, release: str | Environment, question_seconds: float = QUESTION_SECONDS):
        self.environment = release if isinstance(release, Environment) else environment(release)
        self.release = self.environment.release
        self.question_seconds = question_seconds
        self.about: dict = {}
        self._process: subprocess.Popen | None = None
        self._next = 0
        self._buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the process. A later question starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        self._stderr.close()

    def start(self) -> dict:
        """Starts the process if it is not running; returns its versions and import time."""
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process; close() closes it
            self._process = subprocess.Popen(
                [self.environment.python, "-s", str(INSIDE / "worker_main.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=self.environment.variables(),
                start_new_session=True,  # so that a kill reaches the children it forked too
            )
            self._buffer = b""
            first = self._read(START_SECONDS)
            if not isinstance(first, dict) or not first.get("ready"):
                raise RuntimeError(f"the worker of sglang {self.release} did not start ({first}): {self._last_words()}")
            self.about = first
            self.note = self.environment.note(first["transformers"])
        return self.about

    @property
    def pid(self) -> int | None:
        """The process id of the worker, None when it is not running."""
        return self._process.pid if self._process else None

    def _can(self, question: str):
        lack = self.start()["lacks"].get(question)
        if lack:
            raise UsageError(f"sglang {self.release} is too old for the question {question!r}: {lack}")

    def arguments(self, folder: str | os.PathLike, deployment: Deployment) -> Answer:
        """What the release makes of this launch of the checkpoint in `folder` (config.json is enough)."""
        return next(self.arguments_of([(folder, deployment)]))

    def arguments_of(self, questions: Iterable[tuple[str | os.PathLike, Deployment]]) -> Iterator[Answer]:
        """The answers to (folder, deployment) pairs, in order, with several under way at once."""
        self._can("arguments")
        requests = (
            {
                "question": "arguments",
                "argv": argv_of(folder, deployment),
                "gpu": gpu_of(deployment),
                "env": deployment.environment,
            }
            for folder, deployment in questions
        )
        for answer in self._ask(requests):
            yield Answer(release=self.release, note=self.note, **answer)

    def answer_of(self, request: dict) -> Answer:
        """The answer to a request about arguments in the worker's own words."""
        return Answer(release=self.release, note=self.note, **next(self._ask([request])))

    def command(self, argv: Sequence[str], gpu: dict, env: dict | None = None) -> Answer:
        """The same for a command line as the user wrote it."""
        self._can("arguments")
        return self.answer_of({"question": "arguments", "argv": list(argv), "gpu": gpu, "env": env or {}})

    def routing(
        self, folder: str | os.PathLike, deployment: Deployment, modules: Sequence[tuple[str, str]], rank: int = 0
    ) -> RoutingAnswer:
        """The method of each (runtime prefix, kind); kind is "experts", "linear", "attention", "lm_head" or "embedding"."""
        request = build_request("routing", folder, deployment, rank) | {"modules": [list(module) for module in modules]}
        answer = self._answer_about_layers(request)
        return RoutingAnswer(release=self.release, note=self.note, **answer | {"methods": tuple(answer.get("methods", ()))})

    def model(self, folder: str | os.PathLike, deployment: Deployment, rank: int = 0) -> ModelAnswer:
        """Builds the release's own model class without memory, as rank `rank` of the deployment's tp."""
        answer = self._answer_about_layers(build_request("model", folder, deployment, rank))
        modules = tuple(map(tuple, answer.pop("modules", ())))
        return ModelAnswer(release=self.release, note=self.note, modules=modules, **answer | {"experts": tuple(answer.get("experts", ()))})

    def _answer_about_layers(self, request: dict) -> dict:
        self._can("routing")
        return next(self._ask([request]))

    def _ask(self, requests: Iterable[dict]) -> Iterator[dict]:
        waiting: list[dict] = []
        requests = iter(requests)
        try:
            while True:
                while len(waiting) < WINDOW and (request := next(requests, None)) is not None:
                    waiting.append(request | {"id": self._next})
                    self._next += 1
                    self._send(waiting[-1])
                if not waiting:
                    return
                answer = self._read(self.question_seconds)
                request = waiting.pop(0)
                if isinstance(answer, str):  # the question at the head hung or killed the worker: it alone fails
                    last_words = self._last_words()
                    self._kill()
                    for again in waiting:
                        self._send(again)
                    yield {"accepted": False, "error": answer, "message": f"no answer: {last_words}"}
                    continue
                if answer.pop("id") != request["id"]:
                    raise RuntimeError(f"the worker of sglang {self.release} answered out of order")
                if answer.get("error") == "WorkerFault":
                    raise RuntimeError(f"the worker of sglang {self.release} failed by itself:\n{answer['message']}")
                yield answer
        finally:
            if waiting:  # the asker stopped listening; nobody may read these answers as his own
                self._kill()

    def _send(self, request: dict):
        self.start()
        with contextlib.suppress(BrokenPipeError):  # the worker died; reading says so, for the right question
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, seconds: float) -> dict | str:
        """The next answer, or "Timeout" or "WorkerDied"."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(seconds):
                    return "Timeout"
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return "WorkerDied"
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _kill(self):
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def _last_words(self) -> str:
        """The last line the worker printed, for the message of a crash."""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 2000))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
