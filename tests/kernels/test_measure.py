"""The arithmetic of speed: what a layer must move and multiply, and how many inputs take turns."""

import subprocess
from types import SimpleNamespace

import pytest

from helpers.kernels import measure
from helpers.kernels.geometry import NAMED, Block

QWEN = NAMED["qwen3.5-397b"]


def test_an_experts_bytes_are_four_and_a_half_bits_a_weight():
    assert measure.expert_bytes(QWEN) == 3 * 4096 * 1024 * 4.5 / 8 == 7_077_888
    assert measure.expert_bytes(Block("plain", 4096, 1024, 8, 2, "relu2")) == 2 * 4096 * 1024 * 4.5 / 8


def test_a_layer_moves_the_experts_that_are_hit_and_the_tokens_twice():
    nbytes, flops = measure.traffic(QWEN, 4, 38)
    assert nbytes == 38 * 7_077_888 + 4 * 4096 * 2 * 2
    assert flops == 4 * 10 * 3 * 2 * 4096 * 1024


@pytest.mark.parametrize(("hit", "cache", "expected"), [(10, 60 << 20, 4), (512, 60 << 20, 1), (10, 1 << 40, 16), (300, 1 << 40, 2)])
def test_inputs_take_turns_until_the_cache_is_cold(hit, cache, expected):
    assert measure.turns(QWEN, hit, cache) == expected


def test_clocks_are_what_nvidia_smi_says(monkeypatch):
    answer = "580.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 45, 300 W\n"
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout=answer))
    assert measure.clocks()["clocks.sm"] == "1980 MHz" and measure.clocks()["power.draw"] == "300 W"


def test_no_driver_has_no_clocks(monkeypatch):
    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert measure.clocks() == {}
