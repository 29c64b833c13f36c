"""Releases and GPUs are data: order, aliases, and one-line errors for names that do not exist."""

import pytest

from helpers.deployment import DEFAULT_RELEASE, GPUS, RELEASES, gpu, release
from helpers.errors import UsageError


def test_releases_compare_by_age_not_by_text():
    assert release("0.5.12") < release("0.5.12.post1") < release("0.5.13") < release("0.5.23")
    assert DEFAULT_RELEASE == RELEASES[-1] == max(RELEASES)
    assert [known.date for known in RELEASES] == sorted(known.date for known in RELEASES)


@pytest.mark.parametrize(("version", "holds"), [("0.5.15.post1", False), ("0.5.16", True), ("0.5.23", True)])
def test_at_least(version, holds):
    assert release(version).at_least("0.5.16") is holds


def test_unknown_release_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown SGLang release '0\.5\.61': did you mean"):
        release("0.5.61")


def test_every_release_pins_what_it_runs_with():
    for known in RELEASES:
        assert known.transformers and known.torch and known.flashinfer and known.cutlass_dsl and known.sgl_kernel


@pytest.mark.parametrize(
    ("name", "key", "arch"),
    [
        ("B200", "B200", "sm_100"),
        ("sm_103", "B300", "sm_103"),
        ("rtx-pro-6000", "RTX-PRO-6000", "sm_120"),
        ("sm_121", "DGX-Spark", "sm_121"),
    ],
)
def test_a_gpu_has_one_key_and_its_aliases(name, key, arch):
    assert (gpu(name).key, gpu(name).arch) == (key, arch)


def test_families_of_gpus_do_not_overlap():
    for known in GPUS:
        assert sum([known.is_sm90, known.is_sm100, known.is_sm120]) <= 1
        assert known.is_blackwell == (known.capability >= (10, 0))


def test_unknown_gpu_names_the_nearest():
    with pytest.raises(UsageError, match="unknown GPU 'B20': did you mean B200"):
        gpu("B20")
