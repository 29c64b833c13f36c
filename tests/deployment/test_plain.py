"""Plain values become a deployment, or one line that says what is wrong with them."""

import inspect
from dataclasses import replace

import pytest

from helpers.deployment import DEFAULT_GPU, DEFAULT_RELEASE, Deployment, a2a_backends, deployment, gpu, quantizations, release, runners
from helpers.errors import UsageError


def test_no_values_are_the_defaults():
    assert deployment() == Deployment(release=DEFAULT_RELEASE, gpu=DEFAULT_GPU)


def test_defaults_name_the_newest_release_and_the_default_gpu():
    defaults = {name: parameter.default for name, parameter in inspect.signature(deployment).parameters.items()}
    assert (defaults["sglang"], defaults["gpu"]) == (DEFAULT_RELEASE.version, DEFAULT_GPU.key)


def test_text_and_numbers_mean_the_same():
    assert deployment(tp="8", ep="8", env="B=2,A=1", quantization="") == deployment(tp=8, ep=8, env={"A": "1", "B": "2"})


def test_to_dict_round_trips():
    asked = deployment(sglang="0.5.16", runner="flashinfer_cutedsl", a2a="deepep", tp=8, gpu="sm_103", env="X=1", enable_dp_attention=True)
    assert deployment(**asked.to_dict()) == asked


def test_a_deployment_is_a_key():
    asked = deployment(sglang="0.5.16", runner="cutlass")
    assert {asked: 1}[replace(deployment(sglang="0.5.16"), runner="cutlass")] == 1


def test_one_line_says_release_gpu_and_what_differs():
    asked = deployment(sglang="0.5.15", runner="flashinfer_cutedsl", tp=8, env="A=1")
    assert str(asked) == "SGLang 0.5.15 on B200, runner=flashinfer_cutedsl, tp=8, A=1"


def test_names_belong_to_a_release():
    assert "lora_cutedsl" in runners(release("0.5.23"))
    assert "lora_cutedsl" not in runners(release("0.5.22"))
    assert "deepep_v2" in a2a_backends(release("0.5.19"))
    assert "deepep_v2" not in a2a_backends(release("0.5.18"))
    assert "nvfp4_online" in quantizations(release("0.5.14"))
    assert "nvfp4_online" not in quantizations(release("0.5.13"))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"runner": "flashinfer_cutdsl"}, "unknown MoE runner of SGLang 0.5.23 'flashinfer_cutdsl': did you mean flashinfer_cutedsl"),
        ({"sglang": "0.5.11", "runner": "marlin"}, "unknown MoE runner of SGLang 0.5.11 'marlin'"),
        ({"a2a": "deeep"}, "did you mean deepep"),
        ({"quantization": "modelopt_fp5"}, "did you mean modelopt_fp8 or modelopt_fp4"),
        ({"tp": 0}, "tp is 0: give a whole number of at least 1"),
        ({"ep": "2.5"}, "ep is '2.5': give a whole number"),
        ({"tp": True}, "tp is True: give a whole number"),
        ({"env": "SGLANG_X"}, "environment variable 'SGLANG_X': write NAME=VALUE"),
        ({"env": "9X=1"}, "write NAME=VALUE"),
        ({"tpp": 8}, "unknown deployment value 'tpp': did you mean tp"),
        ({"launch": "sglang serve m", "tp": 8}, "tp given beside launch"),
        ({"launch": "sglang serve m", "deepep_mode": "auto"}, "deepep_mode given beside launch"),
        ({"deepep_mode": "slow"}, "known: auto, normal, low_latency"),
        ({"sglang": "0.5.19", "flashinfer_a2a_dispatch_type": "bf16"}, "unknown FlashInfer dispatch type of SGLang 0.5.19"),
    ],
)
def test_bad_values_are_one_line(values, line):
    with pytest.raises(UsageError) as error:
        deployment(**values)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_gpu_may_be_an_alias():
    assert deployment(gpu="sm_120").gpu is gpu("RTX-PRO-6000")
