"""Every machine that cannot compile or run kernels is told so in one line, and none of them has to be here."""

from dataclasses import replace

import pytest

from helpers.kernels.catalogue import KERNELS, not_offered
from helpers.kernels.versions import Platform, compile_blocker, here, run_blocker, within

GOOD = Platform(
    flashinfer="0.7.4",
    cutlass_dsl="4.8.1",
    payloads=(12, 13),
    triton="3.6.0",
    torch="2.13.0+cu130",
    torch_cuda=13,
    driver_cuda=(13, 0),
    gpu="NVIDIA H200",
    capability=(9, 0),
)


def test_a_machine_with_everything_compiles_and_runs():
    assert (compile_blocker(GOOD), run_blocker(GOOD), GOOD.payload) == ("", "", 13)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"system": "macOS on arm64"}, "macOS on arm64: compile on a Linux machine"),
        ({"flashinfer": None}, "flashinfer-python is not installed"),
        ({"flashinfer": "0.6.9"}, "flashinfer-python 0.6.9 is not one that these recipes are written for"),
        ({"flashinfer": "0.8.0"}, "flashinfer-python 0.8.0 is not one"),
        ({"cutlass_dsl": None}, "nvidia-cutlass-dsl is not installed"),
        ({"cutlass_dsl": "4.6.2"}, "nvidia-cutlass-dsl 4.6.2 is not one"),
        ({"torch": None}, "torch is not installed"),
        ({"payloads": ()}, "has no libraries"),
        ({"payloads": (13,), "driver_cuda": (12, 9)}, "built for CUDA 13 and the driver supports CUDA 12.9"),
    ],
)
def test_what_stops_compiling_stops_running_too(changes, says):
    platform = replace(GOOD, **changes)
    assert says in compile_blocker(platform)
    assert run_blocker(platform) == compile_blocker(platform)
    assert "\n" not in compile_blocker(platform)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"driver_cuda": None}, "no NVIDIA driver"),
        ({"capability": None}, "lists no GPU"),
        ({"gpu": "Tesla T4", "capability": (7, 5)}, "Tesla T4 is SM75, and no kernel here runs below SM80"),
        ({"torch": "2.13.0+cpu", "torch_cuda": None}, "torch 2.13.0+cpu is a CPU build"),
        ({"driver_cuda": (12, 8)}, "torch 2.13.0+cu130 is built for CUDA 13 and the driver supports CUDA 12.8"),
        ({"payloads": (12,)}, "the CuTe DSL loads its CUDA 12 libraries and torch 2.13.0+cu130 is built for CUDA 13"),
        ({"torch": "2.9.0+cu128", "torch_cuda": 12}, "the CuTe DSL loads its CUDA 13 libraries and torch 2.9.0+cu128 is built for CUDA 12"),
    ],
)
def test_what_stops_only_running(changes, says):
    platform = replace(GOOD, **changes)
    assert compile_blocker(platform) == ""
    assert says in run_blocker(platform)


def test_of_two_payloads_the_newest_that_the_driver_runs_is_loaded():
    assert replace(GOOD, driver_cuda=None).payload == 13
    assert replace(GOOD, driver_cuda=(12, 9)).payload == 12
    assert replace(GOOD, driver_cuda=(11, 8)).payload is None


@pytest.mark.parametrize(
    ("given", "inside"), [("0.7.3", False), ("0.7.4", True), ("0.7.4.post1", True), ("0.7.10", True), ("0.8.0", False), ("1.0", False)]
)
def test_versions_are_compared_as_numbers(given, inside):
    assert within(given, ("0.7.4", "0.8")) is inside


def test_only_the_kernels_that_need_triton_are_withdrawn_without_it():
    withdrawn = {name for name, kernel in KERNELS.items() if not_offered(kernel, replace(GOOD, triton=None))}
    assert withdrawn == {"b12x_w4a16_moe", "b12x_w4a4_moe"}
    assert "pip install triton" in not_offered(KERNELS["b12x_w4a16_moe"], replace(GOOD, triton=None))


def test_a_kernel_is_offered_for_the_versions_it_is_described_for():
    assert not any(not_offered(kernel, GOOD) for kernel in KERNELS.values())
    assert "0.7.1 is installed" in not_offered(KERNELS["nvfp4_quantize"], replace(GOOD, flashinfer="0.7.1"))


def test_this_machine_is_described_without_importing_what_it_describes():
    found = here()
    assert found.torch and found.system
    assert found.torch_cuda is None or found.torch_cuda >= 11
