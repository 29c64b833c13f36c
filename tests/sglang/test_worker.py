"""The worker and its client, on a made-up release of twenty lines that misbehaves on request: no network, no SGLang."""

import sys
import textwrap

import pytest

from helpers.deployment import Deployment, gpu
from helpers.errors import UsageError
from helpers.sglang.client import Worker
from helpers.sglang.environments import Environment

pytest.importorskip("torch", reason="the worker imports torch")

RELEASE = {
    "__init__.py": "__version__ = '9.9.9'\nprint('noise on stdout while sglang is imported')",
    "srt/__init__.py": "",
    "srt/utils/__init__.py": "from sglang.srt.utils.common import *",
    "srt/utils/common.py": """
        from functools import lru_cache
        import torch

        @lru_cache(maxsize=1)
        def is_cuda():
            return torch.cuda.is_available() and torch.version.cuda is not None

        @lru_cache(maxsize=1)
        def is_sm100_supported():
            return is_cuda() and torch.cuda.get_device_capability()[0] == 10

        def is_flashinfer_available():
            return False
    """,
    "srt/layers/__init__.py": "",
    "srt/layers/quantization/__init__.py": """
        class Mxfp4Config: pass
        BASE_QUANTIZATION_METHODS, QUANTIZATION_METHODS = {}, {}
    """,
    "srt/server_args.py": """
        import argparse, functools, json, os, sys, time
        from sglang.srt.utils import common
        from sglang.srt.utils.common import is_cuda, is_sm100_supported, is_flashinfer_available

        _is_cuda = is_cuda()
        _is_blackwell = (
            is_cuda()
            and is_sm100_supported()
        )

        @functools.lru_cache(maxsize=8)
        def config_of(path):
            with open(os.path.join(path, "config.json")) as file:
                return json.load(file)

        class Config:
            quantization = "from ModelConfig"

        class ServerArgs:
            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--model-path")
                parser.add_argument("--moe-runner-backend", default="auto")
                parser.add_argument("--tp-size", type=int, default=1)

            def check_server_args(self):
                print("noise on stdout while a question is answered")

            def get_model_config(self):
                return Config

        def prepare_server_args(argv):
            parser = argparse.ArgumentParser(prog="sglang serve")
            ServerArgs.add_cli_args(parser)
            given = parser.parse_args(argv)
            args = ServerArgs()
            args.moe_runner_backend, args.tp_size = given.moe_runner_backend, given.tp_size
            args.quantization = os.environ.get("SGLANG_A", "unset")
            args.dtype = f"{_is_cuda} {_is_blackwell} {common.is_sm100_supported()} {is_flashinfer_available()}"
            if given.model_path:
                args.kv_cache_dtype = config_of(given.model_path)["name"]
            if given.moe_runner_backend == "hang":
                time.sleep(600)
            if given.moe_runner_backend == "die":
                print("last words", file=sys.stderr, flush=True)
                os._exit(9)
            if given.moe_runner_backend == "set":
                os.environ["SGLANG_A"] = "set by the server"
                os.environ.pop("SGLANG_GIVEN", None)
            if given.moe_runner_backend == "refuse":
                raise AssertionError("not with me")
            if given.moe_runner_backend == "exit":
                raise SystemExit(3)
            return args
    """,
}

B200, H200 = Deployment(gpu=gpu("B200")), Deployment(gpu=gpu("H200"))


def made_up(folder, **changed) -> Environment:
    for name, text in (RELEASE | changed).items():
        file = folder / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return Environment("9.9.9", sys.executable, (str(folder),), "1.2.3", "cache")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def worker(environment):
    with Worker(environment, question_seconds=60) as worker:
        yield worker


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"name": "first"}')
    return tmp_path


def ask(worker, *questions):
    return list(worker.arguments_of(questions))


def on(deployment=B200, **changed):
    return Deployment(**{"gpu": deployment.gpu, **changed})


def test_prints_of_the_release_do_not_reach_the_protocol(worker, folder):
    answer = worker.arguments(folder, on(runner="triton", tp=4))
    assert (answer.accepted, answer.runner, answer.resolved["tp_size"]) == (True, "triton", 4)
    assert answer.model_quantization == "from ModelConfig"


def test_every_predicate_follows_the_simulated_gpu(worker, folder):
    answers = ask(worker, *((folder, on(deployment)) for deployment in (B200, H200, B200)))
    assert [answer.resolved["dtype"] for answer in answers] == ["True True True True", "True False False True", "True True True True"]


def test_environment_variables_do_not_leak_into_the_next_question(worker, folder):
    given = (("SGLANG_A", "given"), ("SGLANG_GIVEN", "1"))
    first, second, third = ask(worker, (folder, on(runner="set", env=given)), (folder, on()), (folder, on(runner="set")))
    assert first.quantization == "given"
    assert first.env == {"SGLANG_A": "set by the server", "SGLANG_GIVEN": None}
    assert second.quantization == "unset"
    assert second.env == {}
    assert third.env == {"SGLANG_A": "set by the server"}


def test_a_refusal_has_type_text_and_place(worker, folder):
    answer = worker.arguments(folder, on(runner="refuse"))
    assert (answer.accepted, answer.error, answer.message) == (False, "AssertionError", "not with me")
    assert answer.source.startswith("server_args.py:")
    assert answer.source.endswith(" prepare_server_args")


def test_an_exit_of_the_release_is_an_answer(worker, folder):
    answer = worker.arguments(folder, on(runner="exit"))
    assert (answer.error, answer.message) == ("SystemExit", "3")


def test_what_the_parser_refuses_is_an_answer(worker):
    answer = worker.command(["--no-such-flag"], {"name": "x", "capability": [10, 0], "memory_mib": 1, "count": 8})
    assert (answer.error, answer.message) == ("ArgumentRefused", "unrecognized arguments: --no-such-flag")


def test_a_dead_worker_fails_one_question_and_is_started_again(worker, folder):
    before, died, after = ask(worker, (folder, on(runner="a")), (folder, on(runner="die")), (folder, on(runner="b")))
    assert (before.runner, after.runner) == ("a", "b")
    assert (died.accepted, died.error) == (False, "WorkerDied")
    assert "last words" in died.message


def test_a_hang_fails_one_question_and_the_worker_is_started_again(environment, folder):
    with Worker(environment, question_seconds=10) as worker:
        before, hung, after = ask(worker, (folder, on(runner="a")), (folder, on(runner="hang")), (folder, on(runner="b")))
    assert (before.runner, after.runner) == ("a", "b")
    assert (hung.accepted, hung.error) == (False, "Timeout")


def test_answers_that_nobody_listened_to_are_not_the_next_askers(worker, folder):
    asked = worker.arguments_of((folder, on(runner=name)) for name in "abcdef")
    assert next(asked).runner == "a"
    asked.close()
    assert worker.arguments(folder, on(runner="g")).runner == "g"


def test_a_changed_configuration_is_read_again(worker, folder):
    assert worker.arguments(folder, on()).resolved["kv_cache_dtype"] == "first"
    (folder / "config.json").write_text('{"name": "the second"}')
    assert worker.arguments(folder, on()).resolved["kv_cache_dtype"] == "the second"


def test_another_transformers_than_the_pin_is_said(worker, folder):
    answer = worker.arguments(folder, on())
    assert answer.note.endswith("and sglang 9.9.9 pins 1.2.3")


def test_a_fault_of_the_worker_is_nobodys_answer(worker):
    with pytest.raises(RuntimeError, match="failed by itself"):
        worker.command(["--model-path", "x"], {"no": "GPU"})


def test_a_release_too_old_for_a_question_is_named(tmp_path, folder):
    old = RELEASE["srt/server_args.py"].replace('parser.add_argument("--moe-runner-backend", default="auto")', "")
    with Worker(made_up(tmp_path / "old", **{"srt/server_args.py": old})) as worker:
        with pytest.raises(UsageError, match=r"9\.9\.9 is too old for the question 'arguments': it has no --moe-runner-backend"):
            worker.arguments(folder, on())
        with pytest.raises(UsageError, match="'routing'"):
            worker.model(folder, on())


def test_a_release_that_does_not_import_is_said_with_its_last_line(tmp_path):
    broken = made_up(tmp_path, **{"__init__.py": "raise ImportError('no such thing')"})
    with Worker(broken) as worker, pytest.raises(RuntimeError, match=r"did not start \(WorkerDied\): ImportError: no such thing"):
        worker.start()
