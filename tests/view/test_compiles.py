"""The tables of notebook 05, from results that nobody compiled."""

import pytest

from helpers.kernels.compile import Compiled, Question
from helpers.kernels.geometry import NAMED
from helpers.suite import checks
from helpers.view import compiles

BLOCK = NAMED["deepseek-r1"]
CLAIMS = {"b12x_w4a16_moe": frozenset({120, 121}), "nvfp4_quantize": frozenset({100, 120})}
MMA = (("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 64),)


def result(kernel: str, arch: str, reason: str = "", **more) -> Compiled:
    return Compiled(Question(kernel, BLOCK, arch), "v", not reason, reason, 1.0, **more)


HOPPER = result("b12x_w4a16_moe", "sm_90a", registers=128, stack=0, shared=54272, instructions=MMA)
CLAIMED = result("b12x_w4a16_moe", "sm_120a", registers=122, stack=0, shared=54272, instructions=MMA)
LARGE = result("b12x_w4a16_moe", "sm_121a", shared=200_000)
REFUSED = result("nvfp4_quantize", "sm_90a", "ptxas: <no> such instruction")
BROKEN = result("nvfp4_quantize", "sm_100a", "ptxas: <no> such instruction")


def test_every_verdict_has_its_cell():
    assert compiles.cells([HOPPER, CLAIMED, LARGE, REFUSED, BROKEN], CLAIMS) == {
        ("b12x_w4a16_moe", "sm_90a"): "more than claimed",
        ("b12x_w4a16_moe", "sm_120a"): "as claimed",
        ("b12x_w4a16_moe", "sm_121a"): "too large",
        ("nvfp4_quantize", "sm_90a"): "not for it",
        ("nvfp4_quantize", "sm_100a"): "broken claim",
    }


def test_equal_reasons_are_one_row_and_escaped():
    page = compiles.reasons([HOPPER, REFUSED, BROKEN], "Reasons").source
    assert page.count("such instruction") == 1 and "&lt;no&gt;" in page and "nvfp4_quantize: sm_90a, sm_100a" in page


def test_only_what_compiled_has_numbers():
    page = compiles.compiled([HOPPER, REFUSED, LARGE], "Compiled").source
    assert "54272" in page and "m16n8k16" in page and "nvfp4_quantize" not in page
    assert "?" in page and "none of its kind" in page


def test_a_kernel_is_shown_for_the_first_gpu_it_claims():
    assert compiles.first_claimed([HOPPER, REFUSED, CLAIMED, LARGE, BROKEN], CLAIMS) == [CLAIMED, BROKEN]


def test_variants_say_how_many_are_legal_and_why_the_first_fails():
    legal = {"b12x_w4a16_moe": {"a": False, "b": True}, "nvfp4_quantize": {"c": False}}
    page = compiles.variants(legal, {"b12x_w4a16_moe": CLAIMED, "nvfp4_quantize": REFUSED}).source
    assert "1 of 2" in page and ">b<" in page and "0 of 1" in page and "&lt;no&gt;" in page


@pytest.mark.parametrize(("reason", "state"), [("", "pass"), ("no library", "not_run")])
def test_a_check_or_the_reason_why_not(reason, state, monkeypatch):
    monkeypatch.delenv(checks.RECORD_FILE, raising=False)
    monkeypatch.setattr(checks._notebook, "records", {})
    compiles.asserted("x.y", reason, [], [], "equal")
    assert checks._notebook.records["x.y"].state == state
