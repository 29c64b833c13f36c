"""The worker: runs inside the Python of an SGLang release and answers questions, one JSON line each, until its input ends.

Started by helpers/sglang/client.py. Imports nothing of this repository but the files beside it.
"""

import functools
import gc
import importlib
import json
import os
import sys
import time

# The protocol keeps the real stdin and stdout; whatever a library prints or reads goes elsewhere.
REQUESTS = os.fdopen(os.dup(0), "r", encoding="utf-8")
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
os.dup2(2, 1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def say(answer):
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


def imported():
    """Imports the release as on a CPU machine and returns what the client is told about it."""
    import logging

    import torch

    torch.set_num_threads(1)
    import msgspec.structs

    # From 0.5.19 every question asks for the same classes' fields hundreds of times; they depend on the class alone.
    msgspec.structs.fields = functools.cache(msgspec.structs.fields)
    import worker_absent

    worker_absent.stand_in()
    import sglang
    import sglang.srt.server_args
    import transformers

    for name in (
        "arg_groups.overrides",
        "arg_groups.pipeline",
        "configs.model_config",
        "layers.moe.ep_moe.layer",
        "layers.quantization.modelopt_quant",
    ):
        try:
            importlib.import_module(f"sglang.srt.{name}")
        except ModuleNotFoundError as error:  # not every release has each
            if error.name != f"sglang.srt.{name}" and not f"sglang.srt.{name}".startswith(f"{error.name}."):
                raise
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # what the imports made stays: no collection walks it again, and forked children share it
    return {
        "sglang": sglang.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


class Server:
    def __init__(self):
        import worker_arguments
        from worker_gpu import SimulatedMachine

        worker_arguments.keep_parser()
        self.machine = SimulatedMachine()
        self.arguments = worker_arguments
        self.files = worker_arguments.ConfigFiles()
        self.environment = dict(os.environ)
        self.models_imported = self.kernels_imported = False

    def lacks(self):
        """question -> what this release lacks for it; a question that it can be asked is not in it."""
        lacks = {}
        if not self.arguments.knows("--moe-runner-backend"):
            lacks["arguments"] = lacks["routing"] = "it has no --moe-runner-backend"
        elif "sglang.srt.layers.moe.ep_moe.layer" not in sys.modules:
            lacks["routing"] = "it has no sglang.srt.layers.moe.ep_moe.layer"
        return lacks

    def choices(self):
        return self.arguments.choices("--moe-runner-backend", "--moe-a2a-backend", "--quantization")

    def restore_environment(self, given):
        """Back to the environment the worker started with; returns what the question changed beyond `given` (None: removed)."""
        expected = {**self.environment, **given}
        now = dict(os.environ)
        changed = {name: now.get(name) for name in now.keys() | expected.keys() if now.get(name) != expected.get(name)}
        for name in now.keys() - self.environment.keys():
            del os.environ[name]
        for name, value in self.environment.items():
            if now.get(name) != value:
                os.environ[name] = value
        return changed

    def answer(self, request):
        given = request.get("env") or {}
        if request.get("fresh"):
            self.files.forget()
        os.environ.update(given)
        try:
            self.machine.become(request["gpu"])
            self.files.look(request["argv"])
            if request["question"] == "arguments":
                answer = self.ask_arguments(request)
            elif request["question"] in ("routing", "model", "load"):
                answer = self.in_a_child(request)
            else:
                raise ValueError(f"unknown question {request['question']!r}")
        except (Exception, SystemExit) as error:  # noqa: BLE001  the release's refusal, whatever its type, is the answer
            answer = {"accepted": False, **self.arguments.refusal_of(error)}
        answer["env"] = self.restore_environment(given)
        return answer

    def ask_arguments(self, request):
        arguments = self.arguments.ask(request["argv"])
        return {
            "accepted": True,
            "resolved": self.arguments.resolved_fields(arguments),
            "model_quantization": self.arguments.model_quantization(arguments),
        }

    def ask_routing(self, request):
        import worker_routing

        if request["question"] == "load":
            import worker_load

            return worker_load.answer(self.machine, request)
        prepared = worker_routing.prepare(self.machine, request["argv"], request["rank"])
        if request["question"] == "routing":
            return worker_routing.about(*prepared) | {"methods": worker_routing.methods(prepared[2], request["modules"])}
        return worker_routing.about(*prepared) | worker_routing.build(*prepared)

    def in_a_child(self, request):
        import worker_routing

        if not self.models_imported:
            with self.machine.absent():
                worker_routing.import_models()
            self.models_imported = True
        if request["question"] == "load" and not self.kernels_imported:
            import worker_load

            try:
                with self.machine.absent():
                    worker_load.import_kernels()
            except Exception as error:  # noqa: BLE001  whatever it is, this machine cannot be asked
                return {"accepted": False, "error": "FlashInferFails", "message": f"{type(error).__name__}: {error}"}
            self.kernels_imported = True
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                try:
                    answer = {"accepted": True, **self.ask_routing(request)}
                except (Exception, SystemExit) as error:  # noqa: BLE001  as in answer()
                    answer = {"accepted": False, **self.arguments.refusal_of(error)}
                with os.fdopen(write, "w", encoding="utf-8") as pipe:
                    json.dump(answer, pipe)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        if not text:
            end = os.waitstatus_to_exitcode(status)
            return {"accepted": False, "error": "WorkerDied", "message": f"no answer: the process that was asked ended with {end}"}
        return json.loads(text)


def main():
    start = time.perf_counter()
    about = imported()
    server = Server()
    say(
        {
            "ready": True,
            **about,
            "lacks": server.lacks(),
            "choices": server.choices(),
            "import_seconds": round(time.perf_counter() - start, 2),
        }
    )
    for line in REQUESTS:
        request = json.loads(line)
        say({"id": request["id"], **server.answer(request)})


if __name__ == "__main__":
    main()
