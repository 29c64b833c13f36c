"""Real compiles for GPUs that are not here, and the cache in front of them."""

import json
from dataclasses import replace

import pytest

from helpers.errors import InputError, UsageError
from helpers.kernels import compile as compiling
from helpers.kernels import matrix
from helpers.kernels.catalogue import KERNELS
from helpers.kernels.compile import Question, budget, claims, compile_all, folder, missing, tactics
from helpers.kernels.configurations import FAMILIES
from helpers.kernels.geometry import NAMED, Block
from helpers.kernels.versions import compile_blocker, here

needs_library = pytest.mark.skipif(bool(compile_blocker(here())), reason=compile_blocker(here()))
QWEN = NAMED["qwen3-30b-a3b"]
NATIVE = Question("nvfp4_quantize", QWEN, "sm_120a", "linear")
HOPPER = Question("nvfp4_quantize", QWEN, "sm_90a", "linear")
SOFTWARE = Question("nvfp4_quantize", QWEN, "sm_90a", "linear", software=True)
TINY = Question("run_moe_w4a4", Block("tiny", 64, 32, 4, 2), "sm_120a")
NARROW = Question("cutedsl_moe_wrapper", Block("narrow", 4096, 48, 512, 10), "sm_100a")


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A cache of its own, and the results that filled it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVFP4_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield compile_all([NATIVE, HOPPER, SOFTWARE, TINY, NATIVE, NARROW])


def names(result) -> str:
    return " ".join(name for name, _ in result.instructions)


@needs_library
def test_results_come_in_the_order_of_the_questions(cold):
    assert [result.question for result in cold] == [NATIVE, HOPPER, SOFTWARE, TINY, NATIVE, NARROW]
    assert [result.fact for result in cold] == ["compiled", "assembler", "compiled", "geometry", "compiled", "geometry"]


@needs_library
def test_what_a_gpu_lacks_is_said_by_the_assembler(cold):
    assert cold[1].reason == "ptxas: Feature 'cvt.e2m1x2.f32' not supported on .target 'sm_90a'"


@needs_library
def test_the_software_conversion_replaces_that_instruction_and_no_other(cold):
    native, software = cold[0], cold[2]
    assert "cvt.rn.satfinite.e2m1x2.f32" in names(native)
    assert "e2m1" not in names(software) and "cvt.rn.satfinite.e4m3x2.f32" in names(software)
    assert software.registers > 0 and software.stack == 0 and software.shared == 0


@needs_library
def test_a_block_that_the_library_does_not_accept_is_not_compiled(cold):
    assert "does not accept tiny" in cold[3].reason and cold[3].seconds == 0
    assert "does not accept narrow" in cold[5].reason and "any of its 16 variants" in cold[5].reason


@needs_library
def test_the_second_time_nothing_is_compiled(cold, monkeypatch):
    monkeypatch.setattr(compiling, "_worker", None)
    again = compile_all([NATIVE, HOPPER, SOFTWARE, TINY])
    assert all(result.cached for result in again) and not any(result.cached for result in cold)
    assert [(result.fact, result.instructions) for result in again] == [(result.fact, result.instructions) for result in cold[:4]]
    assert budget([NATIVE, TINY]) == 0


@needs_library
@pytest.mark.parametrize("damage", ["", "{", '"text"', '{"ok": "yes"}', "\x00"])
def test_a_damaged_entry_is_compiled_again(cold, damage, monkeypatch):
    entry = next(path for path in folder().iterdir() if json.loads(path.read_text()) == _answer(cold[2]))
    whole = entry.read_text()
    entry.write_text(damage)
    assert missing([SOFTWARE, NATIVE]) == 1 and budget([SOFTWARE, NATIVE]) > 0
    monkeypatch.setattr(compiling, "_worker", lambda jobs: iter([json.loads(whole) | {"job": job} for job in jobs]))
    assert compile_all([SOFTWARE])[0].fact == "compiled"
    assert json.loads(entry.read_text()) == json.loads(whole)


def _answer(result) -> dict:
    """What the cache holds of a result, apart from what is summed up in it."""
    return next(entry for entry in map(_read, folder().iterdir()) if entry and entry.get("instructions") == dict(result.instructions))


def _read(path) -> dict | None:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@needs_library
def test_other_versions_or_sources_are_other_questions(cold, monkeypatch):
    assert missing([NATIVE]) == 0
    monkeypatch.setattr(compiling, "_sources", lambda: "changed")
    assert missing([NATIVE]) == 1


@needs_library
def test_what_the_machine_did_is_asked_again(cold, monkeypatch):
    question = Question("nvfp4_quantize", QWEN, "sm_120a", "8x4")
    died = {"ok": False, "reason": "the compiler died: SIGKILL", "transient": True}
    monkeypatch.setattr(compiling, "_worker", lambda jobs: iter([died | {"job": job} for job in jobs]))
    assert compile_all([question])[0].reason == "the compiler died: SIGKILL"
    assert missing([question]) == 1


@needs_library
def test_a_worker_that_dies_is_one_line(cold, monkeypatch):
    monkeypatch.setattr(compiling.sys, "executable", "/bin/false")
    with pytest.raises(InputError, match="ended after 0 of 1 answers and said: it said nothing"):
        compile_all([Question("nvfp4_quantize", QWEN, "sm_103a", "8x4")])


def test_a_library_that_prints_does_not_answer(monkeypatch, tmp_path):
    talks = tmp_path / "python"
    talks.write_text("""#!/bin/sh\necho 'Welcome to a library'\necho '{"ok": true, "job": {}}'\n""")
    talks.chmod(0o755)
    monkeypatch.setattr(compiling.sys, "executable", str(talks))
    assert list(compiling._worker([{}])) == [{"ok": True, "job": {}}]


def test_nothing_is_compiled_where_the_library_is_not(monkeypatch):
    monkeypatch.setattr(compiling, "here", lambda: compiling.Platform(system="linux"))
    with pytest.raises(InputError, match="flashinfer-python is not installed: pip install"):
        compile_all([NATIVE])


@needs_library
def test_without_triton_only_the_kernels_that_need_it_are_left_out(cold, monkeypatch):
    platform = replace(here(), triton=None)
    monkeypatch.setattr(compiling, "here", lambda: platform)
    monkeypatch.setattr(compiling, "_worker", lambda jobs: iter([{"ok": True, "job": job} for job in jobs]))
    left, asked = compile_all([Question("b12x_w4a16_moe", QWEN, "sm_120a"), NATIVE])
    assert left.fact == "not offered" and "pip install triton" in left.reason and asked.ok
    assert matrix.verdict(left, {"b12x_w4a16_moe": frozenset({120})}) == "not offered"
    assert matrix.facts([left], {}) == {} and "b12x_w4a16_moe" not in (matrix.expected(platform) or {})


def test_questions_about_nothing_are_refused():
    with pytest.raises(UsageError, match="did you mean nvfp4_quantize"):
        Question("nvfp4_quantise", QWEN, "sm_90a")
    with pytest.raises(UsageError, match="did you mean sm_90a"):
        Question("nvfp4_quantize", QWEN, "sm_90")
    with pytest.raises(UsageError, match="limit 0"):
        compile_all([NATIVE], limit=0)


def test_every_kernel_has_a_recipe_and_every_recipe_a_kernel():
    assert set(KERNELS) == set(FAMILIES) and len(KERNELS) >= 15


@needs_library
def test_claims_are_the_library_s_own():
    found = claims()
    assert found["cutedsl_moe_wrapper"] == {100, 103}
    assert found["b12x_w4a16_moe"] == {120, 121}
    assert set(found) == set(KERNELS)


@needs_library
def test_every_claim_says_where_it_was_read():
    for kernel in KERNELS.values():
        assert bool(kernel.claim.reads) != bool(kernel.claim.typed and kernel.claim.source), kernel.name


@needs_library
def test_the_block_decides_which_variants_are_legal():
    legal = tactics(["cutedsl_moe_wrapper", "mm_fp4_cute_dsl"], NAMED["qwen3.5-397b"], "sm_100a")
    assert len(legal["cutedsl_moe_wrapper"]) == 16 and all(legal["cutedsl_moe_wrapper"].values())
    assert set(legal["mm_fp4_cute_dsl"].values()) == {True}


@needs_library
def test_the_cuda_quantiser_is_built_for_hopper_and_returns_nothing_there():
    from helpers.kernels import cuda_quantiser

    assert cuda_quantiser.built_for_hopper()
    assert cuda_quantiser.codes_before_blackwell() == {"0"}
