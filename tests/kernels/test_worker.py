"""A job that hangs, crashes or raises is its own failure, and the others still answer."""

import os
import signal
import time

import pytest

from helpers.kernels import worker

pytest.importorskip("torch")


def hang(job, folder):
    time.sleep(60)


def crash(job, folder):
    os.kill(os.getpid(), signal.SIGKILL)


def leave(job, folder):
    os._exit(3)


def complain(job, folder):
    raise ValueError("no valid tile\nfor this shape")


def refuse(job, folder):
    raise RuntimeError(
        "\x1b[91merror:\x1b[0m ptxas rejected the PTX\n  ptxas log:\n    ptxas application ptx input, line 772; error   : Instruction "
        "'mma with block scale' not\n        supported on .target 'sm_90a'\n    ptxas application ptx input, line 772; error   : Feature"
    )


def fill_the_disk(job, folder):
    raise OSError(28, "No space left on device")


def answer(job, folder):
    print("a library talks")
    return {"ok": True}


OPERATIONS = {each.__name__: each for each in (hang, crash, leave, complain, refuse, fill_the_disk, answer)}


@pytest.fixture
def answers(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "_OPERATIONS", OPERATIONS)

    def run(*operations, limit=20.0):
        jobs = [{"op": operation, "limit": limit} for operation in operations]
        return {found["job"]["op"]: found for found in worker.run(jobs, 2, tmp_path)}

    return run


def test_each_failure_is_its_own(answers):
    found = answers("crash", "leave", "complain", "refuse", "fill_the_disk", "answer")
    assert found["answer"] == {"ok": True, "job": {"op": "answer", "limit": 20.0}}
    said = {operation: each["reason"] for operation, each in found.items() if not each["ok"]}
    assert said == {
        "crash": "the compiler died: SIGKILL",
        "leave": "the compiler ended without an answer",
        "complain": "ValueError: no valid tile",
        "refuse": "ptxas: Instruction 'mma with block scale' not supported on .target 'sm_90a'",
        "fill_the_disk": "OSError: [Errno 28] No space left on device",
    }


def test_a_job_that_hangs_is_killed_at_its_limit(answers):
    found = answers("hang", "answer", limit=0.5)
    assert found["hang"]["reason"] == "hangs: killed after 0.5 s"
    assert found["answer"]["ok"]


def test_what_the_machine_did_is_not_remembered(answers):
    found = answers("crash", "complain", "fill_the_disk")
    assert {operation: each["transient"] for operation, each in found.items()} == {"crash": True, "complain": False, "fill_the_disk": True}


def test_nothing_is_left_behind(answers, tmp_path):
    answers("crash", "answer")
    assert list(tmp_path.iterdir()) == []
