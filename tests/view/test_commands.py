"""Commands are made to be pasted: what is read back from them is the deployment they were written for."""

import shlex

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.deployment import RELEASES, deployment, gpu, parse_launch
from helpers.suite.cli import parse
from helpers.view.commands import launch_command, model_path, preflight_command

PLAIN = {"runner": "flashinfer_cutedsl", "a2a": "deepep", "quantization": "modelopt_fp4", "tp": 8, "ep": 8, "env": "SGLANG_X=a b"}
MORE = PLAIN | {"dp": 8, "enable_dp_attention": True, "deepep_mode": "low_latency", "max_prefill_tokens": 8192, "cuda_graph_max_bs": 64}


@pytest.mark.parametrize("known", RELEASES, ids=str)
@pytest.mark.parametrize("values", [{}, PLAIN, MORE], ids=["defaults", "plain", "more"])
def test_the_launch_command_is_read_back_as_the_same_deployment(known, values):
    asked = deployment(sglang=known.version, gpu="H200", **values)
    read = parse_launch(launch_command("/models/it's here", asked), known, gpu("H200"))
    assert read == asked
    assert read.model == "/models/it's here"
    assert read.unexamined == ()


@pytest.mark.parametrize("values", [{}, PLAIN, MORE], ids=["defaults", "plain", "more"])
def test_the_preflight_command_asks_the_same_question(values):
    asked = deployment(sglang="0.5.16", gpu="H200", **values)
    words = shlex.split(preflight_command("/models/it's here", asked))
    assert words[:3] == ["python", "-m", "helpers"]
    from helpers.suite.preflight import values as read

    arguments = parse(words[3:])
    assert arguments.checkpoint == "/models/it's here"
    assert deployment(**read(arguments)) == asked


def test_the_model_path_is_one_that_a_server_would_take(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert model_path(open_checkpoint(str(tmp_path)), str(tmp_path)) == str(tmp_path)
    assert model_path(open_checkpoint("qwen3-moe-nvfp4"), "qwen3-moe-nvfp4") == "data/checkpoints/qwen3-moe-nvfp4"
    public = from_configs("nvidia--Kimi-K2.5-NVFP4", {})
    assert model_path(public, "nvidia--Kimi-K2.5-NVFP4") == "nvidia/Kimi-K2.5-NVFP4"


def test_the_default_deployment_needs_no_flag():
    assert launch_command("m", deployment()) == "python -m sglang.launch_server \\\n  --model-path m"
