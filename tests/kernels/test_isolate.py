"""A case that hangs, crashes or raises is named, and all the others still run."""

import pytest

from helpers.kernels.isolate import run

MODULE = """
import os, signal, time

def work(case):
    what = case["do"]
    if what == "hang":
        time.sleep(60)
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "leave":
        print("something to read", flush=True)
        import sys; print("last words", file=sys.stderr, flush=True)
        os._exit(9)
    if what == "raise":
        raise ValueError("a plain\\nmistake")
    if what == "poison":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return {"pid": os.getpid(), "said": case["do"]}
"""


@pytest.fixture
def work(tmp_path):
    (tmp_path / "isolated_work.py").write_text(MODULE)

    def outcomes(*what, limit=30.0):
        cases = [{"do": each} for each in what]
        return list(run("isolated_work:work", cases, limit=limit, env={"PYTHONPATH": str(tmp_path)}))

    return outcomes


def test_cases_come_back_in_order_from_one_process(work):
    found = work("a", "b", "c")
    assert [(o.case, o.state, o.value["said"]) for o in found] == [(0, "done", "a"), (1, "done", "b"), (2, "done", "c")]
    assert len({o.value["pid"] for o in found}) == 1


def test_a_crash_ends_only_itself_and_is_named(work):
    before, crashed, after = work("a", "crash", "b")
    assert (before.state, crashed.state, after.state) == ("done", "crashed", "done")
    assert "SIGSEGV" in crashed.reason and after.value["pid"] != before.value["pid"]


def test_a_hang_is_ended_at_its_limit_and_named(work):
    hung, after = work("hang", "b", limit=1.5)
    assert hung.state == "hung" and "more than 1.5 s" in hung.reason
    assert after.state == "done" and after.case == 1


def test_last_words_are_told(work):
    (left,) = work("leave")
    assert left.state == "crashed" and "exit code 9" in left.reason and "last words" in left.reason


def test_an_exception_is_the_cases_result_in_one_line(work):
    raised, after = work("raise", "b")
    assert raised.state == "error" and raised.reason == "ValueError: a plain mistake"
    assert after.state == "done"


def test_a_poisoned_gpu_context_is_left_behind(work):
    before, poisoned, after = work("a", "poison", "b")
    assert poisoned.state == "error" and "illegal memory access" in poisoned.reason
    assert after.state == "done" and after.value["pid"] != before.value["pid"]


def test_every_case_of_a_module_that_cannot_be_imported_is_named():
    found = list(run("no_such_module:work", [{}, {}], limit=5))
    assert [o.state for o in found] == ["crashed", "crashed"] and "no_such_module" in found[0].reason


def test_another_package_called_helpers_in_the_working_directory_is_not_taken(work, tmp_path, monkeypatch):
    (tmp_path / "here" / "helpers").mkdir(parents=True)
    (tmp_path / "here" / "helpers" / "__init__.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path / "here")
    assert [outcome.state for outcome in work("a")] == ["done"]


def test_the_last_case_may_crash(work):
    assert [o.state for o in work("a", "crash")] == ["done", "crashed"]
