"""`python -m helpers kernels`: what it prints, its exit codes, and what it says when asked wrongly."""

import json

import pytest

from helpers.kernels import command, matrix
from helpers.kernels.compile import Compiled
from helpers.kernels.versions import compile_blocker, here
from helpers.suite.cli import main

needs_library = pytest.mark.skipif(bool(compile_blocker(here())), reason=compile_blocker(here()))


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main(["kernels", *arguments])
        return code, *capsys.readouterr()

    return call


@needs_library
def test_list_names_every_kernel_with_its_claim(run):
    code, said, _ = run("list", "--json")
    found = {row["kernel"]: row for row in json.loads(said)["kernels"]}
    assert code == 0 and found["b12x_w4a16_moe"]["claims"] == ["sm_120", "sm_121"]
    assert not any(row["not offered"] for row in found.values())
    assert run("list")[1].count("\n") == len(found)


def test_list_works_where_nothing_can_be_compiled(run, monkeypatch):
    monkeypatch.setattr(command, "here", lambda: command_platform("macOS on arm64"))
    code, said, _ = run("list")
    assert code == 0 and "none is offered here: FlashInfer and the CuTe DSL" in said and "claims: not readable here" in said


def command_platform(system: str):
    from helpers.kernels.versions import Platform

    return Platform(system=system)


@needs_library
def test_compile_prints_one_line_or_one_object_a_kernel(run):
    asked = ("compile", "nvfp4_quantize", "--arch", "sm_90a", "--arch", "sm_120a", "--block", "qwen3-30b-a3b")
    code, said, _ = run(*asked)
    first, second = said.splitlines()
    assert code == 1 and "assembler: ptxas: Feature 'cvt.e2m1x2.f32'" in first and "cvt.rn.satfinite.e2m1x2.f32" in second
    code, said, _ = run(*asked, "--json")
    assert [row["fact"] for row in json.loads(said)["compiled"]] == ["assembler", "compiled"]


@needs_library
def test_every_variant_of_a_checkpoint_s_experts(run):
    asked = ("compile", "nvfp4_quantize", "--arch", "sm_90a", "--checkpoint", "qwen3.5-moe-mixed", "--every-variant", "--software-e2m1")
    code, said, _ = run(*asked)
    assert code == 0 and [line.rpartition("(")[2] for line in said.splitlines()] == ["128x4)", "8x4)", "linear)"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compile", "b12x_w4a16_mo"), "did you mean b12x_w4a16_moe"),
        (("compile", "nvfp4_quantize", "--arch", "sm_90"), "did you mean sm_90a"),
        (("compile", "nvfp4_quantize", "--block", "qwen"), "unknown block 'qwen'"),
        (("compile", "nvfp4_quantize", "--tp", "2"), "give --checkpoint with them"),
        (("compile", "nvfp4_quantize", "--block", "deepseek-r1", "--checkpoint", "x"), "give one of them"),
        (("compile", "nvfp4_quantize", "--write"), "give no kernel with it"),
        (("compile", "--arch", "sm_90a"), "--arch is for named kernels"),
        (("compile", "nvfp4_quantize", "--limit", "0"), "limit 0"),
        ((), "ACTION"),
    ],
)
def test_asked_wrongly_is_one_line_and_2(run, arguments, says):
    code, said, error = run(*arguments)
    assert (code, said) == (2, "") and says in error and error.count("\n") == 1


def test_nothing_to_compile_with_is_3(run, monkeypatch):
    from helpers.kernels import compile as compiling

    monkeypatch.setattr(compiling, "here", lambda: command_platform("linux"))
    code, _, error = run("compile", "nvfp4_quantize")
    assert code == 3 and "flashinfer-python is not installed" in error


@pytest.fixture
def facts(monkeypatch):
    """The matrix as recorded, without compiling it; `facts(kernel, column, reason)` makes one square fail."""
    recorded = matrix.expected(here())
    if recorded is None:
        pytest.skip("no facts are recorded for these versions")
    broken = {}

    def results(questions, progress=None, limit=0):
        return [result(question) for question in questions]

    def result(question):
        asked = Compiled(question, "v", True, "", 0.1)
        entry = recorded[question.kernel]
        fact = entry["facts"][matrix.column(asked)]
        reason = broken.get(
            (question.kernel, matrix.column(asked)), "" if fact == "compiled" else "ptxas: x" if fact == "assembler" else "x"
        )
        named = {"tcgen05.mma.mxf4nvf4.block_scale", "mma.sync.mxf4nvf4.block_scale", "mma.sync.m16n8k16.bf16", "fma.rn.f32"}
        named |= {"cvt.rn.satfinite.e2m1x2.f32", "cvt.rn.f16x2.e2m1x2"}
        shown = tuple((name, 1) for name in named) if matrix.column(asked) in entry["proven"] else ()
        return Compiled(question, "v", not reason, reason, 0.1, 1, 0, 0, shown)

    monkeypatch.setattr(command, "compile_all", results)
    monkeypatch.setattr(command, "budget", lambda questions: 0)
    monkeypatch.setattr(command, "claims", lambda: {name: frozenset(entry["claims"]) for name, entry in recorded.items()})
    return lambda kernel, column, reason: broken.update({(kernel, column): reason})


def test_the_matrix_as_recorded_is_0(run, facts):
    code, said, _ = run("compile")
    assert code == 0 and said.splitlines()[-1] == "73 of 132 compiled; 0 broken claims; 0 facts changed"
    assert json.loads(run("compile", "--json")[1])["changed"] == []


def test_a_fact_that_changed_is_1_and_named(run, facts):
    facts("b12x_w4a16_moe", "sm_90a", "ptxas: Instruction 'x' not supported")
    code, said, _ = run("compile")
    assert code == 1 and "changed: b12x_w4a16_moe: sm_90a: compiled → assembler" in said and "0 broken claims" in said


def test_a_broken_claim_is_1(run, facts, monkeypatch):
    monkeypatch.setattr(matrix, "expected", lambda platform: None)
    facts("cutedsl_moe_wrapper", "sm_103a", "ValueError: x")
    code, said, _ = run("compile")
    assert code == 1 and said.splitlines()[-1].endswith("1 broken claims; no facts are recorded for these versions: nothing asserted")
