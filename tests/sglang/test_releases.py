"""Facts about the worker that only a real release can show. Skipped, with its name, where a release is not built (ORACLE)."""

import itertools

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import RELEASES, Deployment, gpu, release
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.client import Worker, argv_of, gpu_of
from helpers.sglang.environments import environments
from helpers.sglang.oracle import askable

pytestmark = pytest.mark.timeout(1200)
EVERY = [known.version for known in RELEASES]
FLAT = open_checkpoint("qwen3-moe-nvfp4")
MIXED = open_checkpoint("qwen3-moe-mixed")


def there(name: str) -> str:
    """Skips unless the release is built; ORACLE=required asks that of CI's releases alone."""
    if name not in DEFAULT_RELEASES and name not in environments():
        pytest.skip(f"sglang {name} is not built")
    found, missing = askable([name])
    if not found:
        pytest.skip(missing)
    return name


@pytest.fixture(scope="module")
def worker():
    with Worker(there("0.5.16")) as worker:
        yield worker


@pytest.mark.parametrize("name", EVERY)
def test_every_release_refuses_what_it_must_and_accepts_what_it_must(name):
    """From 0.5.19 nothing is resolved before resolve_once(): a worker that forgot it would see no refusal."""
    known = release(name)
    with Worker(there(name)) as worker:
        refused = worker.arguments(FLAT.path, Deployment(known, "flashinfer_cutedsl", quantization="fp8"))
        accepted = worker.arguments(FLAT.path, Deployment(known, "flashinfer_cutedsl", quantization="modelopt_fp4"))
    assert (refused.accepted, refused.error) == (False, "AssertionError")
    assert "CuteDSL" in refused.message
    assert "moe_kernel_config" in refused.function
    assert (accepted.accepted, accepted.runner, accepted.model_quantization) == (True, "flashinfer_cutedsl", "modelopt_fp4")
    assert refused.note == accepted.note == ""


@pytest.mark.parametrize(("name", "accepted"), [("0.5.15", False), ("0.5.16", True)])
def test_the_case_that_began_it(name, accepted):
    with Worker(there(name)) as worker:
        answer = worker.arguments(MIXED.path, Deployment(release(name), "flashinfer_cutedsl"))
    assert answer.accepted is accepted


def test_the_simulated_gpu_decides(worker):
    known = release("0.5.16")
    blackwell, hopper = (worker.arguments(FLAT.path, Deployment(known, gpu=gpu(name))) for name in ("B200", "H100"))
    assert (blackwell.runner, hopper.runner) == ("flashinfer_trtllm", "auto")
    assert blackwell.resolved["attention_backend"] != hopper.resolved["attention_backend"]


def test_cached_configurations_change_no_answer(worker):
    known = release("0.5.16")
    launches = [Deployment(known, runner, quantization=flag) for runner in ("auto", "marlin") for flag in (None, "modelopt_fp4", "fp8")]
    questions = list(itertools.product((FLAT, MIXED, open_checkpoint("nemotron-h-mixed")), launches))
    cached = list(worker.arguments_of((checkpoint.path, launch) for checkpoint, launch in questions * 2))
    for (checkpoint, launch), first, again in zip(questions, cached, cached[len(questions) :], strict=False):
        request = {"question": "arguments", "argv": argv_of(checkpoint.path, launch), "gpu": gpu_of(launch), "fresh": True}
        fresh = worker.answer_of(request)
        assert first == again == fresh


def test_a_model_is_built_as_the_release_builds_it(worker):
    answer = worker.model(MIXED.path, Deployment(release("0.5.16"), "flashinfer_cutedsl", "deepep"))
    assert answer.failure is None
    assert {layer["layer"] for layer in answer.experts} == {"DeepEPMoE"}
    assert {layer["deprecate_flag"] for layer in answer.experts} == {True}
    methods = {prefix: method for prefix, _, method in answer.modules}
    assert methods["model.layers.0.mlp.experts"] == "ModelOptNvFp4FusedMoEMethod"
    modules = [(prefix, "experts" if "experts" in prefix else "linear") for prefix in methods if "layers" in prefix]
    asked = worker.routing(MIXED.path, Deployment(release("0.5.16")), [module for module in modules if not module[0].endswith(".attn")])
    built = [methods[prefix] for prefix, _ in modules if not prefix.endswith(".attn")]
    assert list(asked.methods) == built


def test_what_ends_the_construction_is_an_answer(worker):
    answer = worker.model(FLAT.path, Deployment(release("0.5.16"), "cutlass"))
    assert answer.failure["error"] == "NotImplementedError"
    assert answer.failure["function"] == "create_moe_runner"
    assert answer.failure["file"] == "layers/quantization/modelopt_quant.py"


def test_a_checkpoint_that_crashes_the_release_is_an_answer(worker, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_attention_heads": 0}')
    answer = worker.arguments(tmp_path, Deployment(release("0.5.16")))
    assert (answer.accepted, answer.error) == (False, "ZeroDivisionError")
    assert answer.file
    (tmp_path / "config.json").write_text("{")
    assert not worker.arguments(tmp_path, Deployment(release("0.5.16"))).accepted


def test_many_questions_leave_the_memory_as_it_was(worker):
    launches = [Deployment(release("0.5.16"), runner) for runner in ("auto", "triton", "flashinfer_cutedsl", "nonsense")]
    questions = itertools.cycle([(FLAT.path, launch) for launch in launches])

    def resident_after(count: int) -> float:
        for _ in worker.arguments_of(itertools.islice(questions, count)):
            pass
        with open(f"/proc/{worker.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    early = resident_after(500)
    assert resident_after(2500) - early < 20
