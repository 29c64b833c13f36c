"""Configurations that hypothesis makes up, asked of the model and of real releases. The first that differs is made as small as it can."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.checkpoint import open_checkpoint
from helpers.checkpoint.folders import folders
from helpers.deployment import Deployment, a2a_backends, gpu, release, runners
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.client import Worker
from helpers.sglang.compare import built_model, compare_arguments, judge_modules
from helpers.sglang.differential import known
from helpers.sglang.matrix import FLAGS, Question
from helpers.sglang.mutants import mutant
from helpers.sglang.oracle import askable
from helpers.stages.detect import detect
from helpers.stages.route import route

pytestmark = pytest.mark.timeout(1200)
SMALL = ("qwen3-moe-mixed", "qwen3.5-moe-mixed", "deepseek-v3-mixed", "nemotron-h-mixed-repaired", "minimax-m2-nvfp4", "glm-moe-dsa-nvfp4")


@pytest.fixture(scope="module", params=DEFAULT_RELEASES)
def asked(request):
    there, missing = askable([request.param])
    if not there:
        pytest.skip(missing)
    with folders() as folder, Worker(request.param) as worker:
        yield worker, folder, release(request.param)


def names_of(checkpoint, known_release):
    routing = route(checkpoint, detect(checkpoint, known_release), known_release)
    return list(dict.fromkeys(source for module in routing.modules for source in module.sources if module.kind in ("linear", "experts")))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_model_and_release_agree_on_what_nobody_published(asked, data):
    worker, folder, known_release = asked
    base = open_checkpoint(data.draw(st.sampled_from(SMALL), "checkpoint"))
    checkpoint = mutant(base, names_of(base, known_release), data.draw(st.randoms(use_true_random=False), "quantization"))
    launches = [
        Deployment(
            known_release,
            data.draw(st.sampled_from(runners(known_release)), "runner"),
            data.draw(st.sampled_from(("none", *a2a_backends(known_release))), "a2a"),
            quantization=data.draw(st.sampled_from((None, None, *FLAGS)), "flag"),
            gpu=gpu(data.draw(st.sampled_from(("B200", "H100", "RTX-PRO-6000")), "gpu")),
        )
        for _ in range(6)
    ]
    found = [difference for _, _, difference in compare_arguments(worker, [Question(checkpoint, launch) for launch in launches], folder)]
    real = built_model(worker, checkpoint, known_release, folder)
    if real is not None:
        found.append(judge_modules(checkpoint, known_release, real))
    unexplained = [difference for difference in found if difference and not any(entry.explains(difference) for entry in known())]
    assert not unexplained, f"{unexplained[0]}\nconfig.json: {checkpoint.config}\nhf_quant_config.json: {checkpoint.hf_quant}"
