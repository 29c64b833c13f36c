"""An activation or a top-k that cannot be: refused where the model class looks, never passed where it does not."""

import pytest

from helpers.checkpoint import from_configs, open_checkpoint
from helpers.deployment import deployment
from helpers.stages.verdict import judge


def changed(name, **fields):
    made = open_checkpoint(name)
    return from_configs("made for a test", made.config | fields, made.hf_quant)


def judged(made, **values):
    judgement = judge(made, deployment(**values))
    return judgement.verdict.outcome, {found.id: found for found in judgement.verdict.findings}


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
@pytest.mark.parametrize("name", ["deepseek-v3-mixed", "glm-moe-dsa-nvfp4"])
def test_a_class_that_looks_at_the_activation_refuses_another(name, version):
    outcome, findings = judged(changed(name, hidden_act="frobnicate"), sglang=version)
    assert outcome == "fails_to_load"
    assert any("Unsupported activation: frobnicate. Only silu is supported for now." in found.observed for found in findings.values())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("qwen3-moe-mixed", {"hidden_act": "frobnicate"}),
        ("minimax-m2-nvfp4", {"hidden_act": "gelu"}),
        ("qwen3-moe-mixed", {"num_experts_per_tok": 9}),
    ],
)
def test_what_no_class_looks_at_is_not_passed(name, fields):
    outcome, findings = judged(changed(name, **fields), sglang="0.5.16", runner="flashinfer_trtllm")
    assert outcome == "unknown"
    assert findings["load.activation" if "hidden_act" in fields else "load.top_k"].severity == "abstained"


@pytest.mark.parametrize("name", ["qwen3-moe-mixed", "gemma4-nvfp4", "nemotron-h-mixed-repaired", "gpt-oss-nvfp4", "llama4-nvfp4"])
def test_published_activations_and_top_k_are_not_mentioned(name):
    _, findings = judged(open_checkpoint(name), sglang="0.5.23")
    assert not {"load.activation", "load.top_k"} & set(findings)
