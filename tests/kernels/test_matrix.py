"""The facts of the pinned versions: what compiles for which GPU, held against what is recorded and what the library claims."""

import json
import re
import tomllib
from dataclasses import replace
from importlib.metadata import version

import pytest

from helpers.kernels import matrix
from helpers.kernels.catalogue import KERNELS
from helpers.kernels.compile import claims
from helpers.kernels.targets import TARGETS
from helpers.kernels.versions import compile_blocker, here
from helpers.paths import DATA, ROOT

pytestmark = pytest.mark.skipif(bool(compile_blocker(here())), reason=compile_blocker(here()))


@pytest.fixture(scope="module")
def results():
    return matrix.compile_matrix()


@pytest.fixture(scope="module")
def found(results):
    return matrix.facts(results, claims())


# 132 compiles: a minute on two free cores when the cache is cold, and CI's are not free.
@pytest.mark.timeout(1500)
def test_the_facts_are_those_recorded_for_these_versions(found):
    recorded = matrix.expected(here())
    if recorded is None:
        pytest.skip(f"no facts are recorded for {matrix.path(here()).name}: `python -m helpers kernels compile --write` records them")
    assert matrix.differences(found, recorded) == []


@pytest.mark.timeout(1500)
def test_the_pinned_versions_have_recorded_facts():
    pins = (ROOT / "pyproject.toml").read_text()
    pinned = [re.search(rf'"{name}[^"=]*==([\d.]+)', pins)[1] for name in ("flashinfer-python", "nvidia-cutlass-dsl")]
    assert matrix.path(replace(here(), flashinfer=pinned[0], cutlass_dsl=pinned[1])).exists()


@pytest.mark.timeout(1500)
def test_what_is_claimed_compiles_and_fits(results):
    known = claims()
    assert {matrix.verdict(result, known) for result in results} == {"as claimed", "more than claimed", "not for it"}


@pytest.mark.timeout(1500)
def test_a_claimed_gpu_gets_the_instruction_that_the_kernel_is_about(results):
    known = claims()
    for result in results:
        if TARGETS[result.question.arch].sm in known[result.question.kernel]:
            assert matrix.proven(result), (result.question.kernel, result.question.arch)


@pytest.mark.timeout(1500)
def test_hopper_compiles_these_and_no_others(results):
    compiled = {matrix.column(result): set() for result in results}
    for result in results:
        if result.ok:
            compiled[matrix.column(result)].add(result.question.kernel)
    assert compiled[matrix.HOPPER] == {"b12x_w4a16_moe", "frost_w4a16_moe"}
    quantise = {name for name in KERNELS if name.endswith(("_quantize", "_per_token"))}
    assert compiled[matrix.SOFTWARE] == compiled[matrix.HOPPER] | quantise | {"run_moe_w4a16", "mm_bf16_fp4_sm12x"}


@pytest.mark.timeout(1500)
def test_a_fact_that_changed_is_one_line(found):
    changed = {name: entry | {"facts": dict(entry["facts"])} for name, entry in found.items()}
    changed["b12x_w4a16_moe"]["facts"][matrix.HOPPER] = "assembler"
    del changed["rmsnorm_quantize"]
    assert "b12x_w4a16_moe: sm_90a: compiled → assembler" in matrix.differences(changed, found)
    assert any(line.startswith("rmsnorm_quantize: claims: ") and line.endswith("→ None") for line in matrix.differences(changed, found))


@pytest.mark.timeout(1500)
def test_a_kernel_that_asks_for_too_much_shared_memory_is_seen(results):
    result = next(result for result in results if result.question.arch == "sm_120a" and result.ok)
    large = replace(result, shared=TARGETS["sm_120a"].shared_block + 1)
    assert matrix.verdict(large, claims()) == "too large"


def test_facts_are_asserted_only_for_the_versions_they_were_recorded_with():
    assert matrix.expected(here()) is None or version("flashinfer-python") in matrix.path(here()).name
    assert matrix.expected(replace(here(), flashinfer="0.0.1")) is None


def test_a_machine_with_a_gpu_compiled_the_same():
    """The matrix as a machine with an H200 compiled it, under another Python, another Triton and a CUDA build of torch."""
    recorded = json.loads((DATA / "recorded" / "compile_h200.json").read_text())
    facts = tomllib.loads(matrix.path(replace(here(), **_versions(recorded))).read_text())
    there = {name: {} for name in facts}
    for row in recorded["compiled"]:
        there[row["kernel"]][row["column"]] = row["fact"]
    assert there == {name: entry["facts"] for name, entry in facts.items()}


def _versions(recorded: dict) -> dict:
    return {name: recorded["packages"][name] for name in ("flashinfer", "cutlass_dsl")}
