"""Real loads of one block of experts. ORACLE=required: all of CI's releases must be built with FlashInfer; auto: those that are."""

import itertools
import json
import shutil
import sys
from dataclasses import replace

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment, release
from helpers.errors import InputError, UsageError
from helpers.sglang import breaking, loading
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.damage import KINDS, damaged
from helpers.sglang.load_differential import SUBJECTS, compare_loads, judge_load, questions
from helpers.sglang.loading import LoadWorker, layer_bytes
from helpers.sglang.oracle import loadable, mode
from helpers.stages import block
from helpers.stages.verdict import judge

pytestmark = pytest.mark.timeout(7_200)

# Loads of each release: 3,000 in CI; enough elsewhere to see each kind of damage on each checkpoint once.
COUNT = 1_000 if mode() == "required" else 192


@pytest.fixture(scope="module")
def there():
    there, missing = loadable(DEFAULT_RELEASES)
    if not there:
        pytest.skip(missing)
    return there


@pytest.fixture(scope="module")
def report(request, there):
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line):
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr, flush=True)

    say("")
    report = compare_loads([release(name) for name in there], COUNT, say)
    for group in report.groups()[:20]:
        say(f"{len(group)} like this: {group[0]}")
    say(f"peak {report.peak_mib} MiB a process; {report.seconds / len(report.answers):.2f} s a load")
    say(report.last_line)
    return report


@pytest.mark.parametrize("name", DEFAULT_RELEASES)
def test_release_was_asked_to_load(name):
    there, missing = loadable([name])
    if not there:
        pytest.skip(missing)


def test_the_model_and_the_loads_agree(report):
    assert not report.disagreements, f"{report.last_line}; the first: {report.disagreements[0]}"


def test_the_loads_are_distinct_and_as_many_as_promised(report, there):
    asked = {(question, question.deployment.release) for question, _, _ in report.answers}
    assert len(asked) == len(report.answers) == COUNT * len(there)
    assert {question.kind for question, _, _ in report.answers} == set(KINDS)


def test_loads_end_in_every_way(report):
    """Loaded and not, at each step, with something unwritten and something dropped: the comparison is not about one answer."""
    ends = {answer["step"] for _, _, answer in report.answers}
    assert ends >= {"", "load", "process"}
    assert any(answer["unwritten"] and not answer["step"] for _, _, answer in report.answers)
    assert any(answer["dropped"] and not answer["step"] for _, _, answer in report.answers)


def test_a_worker_stays_small(report):
    assert report.peak_mib < 3 * 1024


# Conditions of the model of loading that may be turned round without a compared answer changing, each with its reason.
NOT_HELD: dict[str, str] = {}


def test_turning_round_any_condition_of_the_load_rules_is_noticed(report):
    if len(report.answers) < COUNT * len(DEFAULT_RELEASES):
        pytest.skip(f"needs sglang {', '.join(DEFAULT_RELEASES)} together")
    quiet = set()
    with breaking.wired(block) as wiring:
        for condition in wiring.conditions:
            wiring.turned = condition
            if not any(_differs(*asked) for asked in report.answers):
                quiet.add(f"{condition.place}: {condition.text}")
    assert quiet <= set(NOT_HELD)


@pytest.mark.parametrize("rule", block.PROCESS_RULES, ids=lambda rule: rule.__name__)
def test_every_rule_about_the_kernels_layout_is_held(report, monkeypatch, rule):
    monkeypatch.setattr(block, "PROCESS_RULES", tuple(other for other in block.PROCESS_RULES if other is not rule))
    assert any(_differs(*asked) for asked in report.answers)


def _differs(question, checkpoint, answer) -> bool:
    """Whether the broken model answers otherwise than the release; it may also fall over."""
    try:
        return judge_load(question, checkpoint, answer) is not None
    except Exception:  # noqa: BLE001  a broken model may raise anything, and that is noticed
        return True


@pytest.fixture(scope="module")
def worker(there):
    with LoadWorker(there[-1]) as worker:
        yield worker


def on(worker, **values):
    return deployment(**{"sglang": worker.release, "runner": "flashinfer_cutlass", "quantization": "modelopt_mixed"} | values)


def test_every_tensor_of_the_checkpoint_is_accounted_for(worker):
    checkpoint = open_checkpoint("qwen3-moe-mixed")
    answer = worker.load(checkpoint, on(worker), 1)
    assert answer.accepted
    assert set(answer.tensors) == set(checkpoint.tensors)
    assert answer.source == "model.layers.1.mlp.experts"
    place = answer.tensors["model.layers.1.mlp.experts.5.up_proj.weight_scale"]
    assert place == [["model.layers.1.mlp.experts.w13_weight_scale", 5, "w3"]]
    assert not answer.unwritten
    assert all(name.endswith(("k_scale", "v_scale")) for name in answer.dropped)


def test_what_another_rank_holds_is_not_dropped(worker):
    answer = worker.load(open_checkpoint("qwen3-moe-mixed"), on(worker, tp=2, ep=2), 0, rank=1, whole=False)
    assert answer.share["experts"] == [4, 5, 6, 7]
    assert "model.layers.0.mlp.experts.0.up_proj.weight" in answer.elsewhere
    assert not answer.dropped
    assert not answer.unwritten


def test_the_values_after_loading_and_after_processing_are_written(worker, tmp_path):
    from safetensors.torch import load_file

    answer = worker.load(open_checkpoint("qwen3-moe-mixed"), on(worker, runner="flashinfer_trtllm"), 0, into=tmp_path)
    assert "block_scale_interleave" in answer.replaced
    for path, forms in ((answer.loaded, answer.before), (answer.processed, answer.after)):
        tensors = load_file(path)
        assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {name: shape for name, (_, shape) in forms.items()}


def test_experts_that_are_not_nvfp4_are_loaded_too(worker):
    """The write-up's "rejected at load" is not so: FP8 experts of a mixed checkpoint load, and run on Triton."""
    answer = worker.load(open_checkpoint("qwen3-moe-mixed-fp8-layer"), on(worker, runner="flashinfer_cutedsl"), 1)
    assert (answer.accepted, answer.method, answer.runner) == (True, "ModelOptFp8MoEMethod", "triton")


def test_what_the_release_warns_of_is_told(worker, tmp_path):
    checkpoint = damaged(open_checkpoint("qwen3-moe-mixed"), "gate and up scales differ", 0, tmp_path)
    said = "WARNING: w1_weight_scale_2 must match w3_weight_scale_2. Accuracy may be affected."
    assert said in worker.load(checkpoint, on(worker, runner="marlin"), 0).log
    assert said not in worker.load(checkpoint, on(worker), 0).log


def test_nemotrons_exported_embedding_is_read_by_nobody(worker, tmp_path):
    """load.embedding_not_loaded, seen: once the Mamba groups are where the release reads them, one tensor is left over."""
    exported = open_checkpoint("nemotron-h-nvfp4-repaired")
    launch = on(worker, quantization="modelopt_fp4")
    assert worker.load(exported, launch, 1).function == "weight_loader"
    for file in ("hf_quant_config.json", "model.safetensors"):
        shutil.copy(exported.path / file, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(exported.config | {"mamba_n_groups": exported.config["n_groups"]}))
    answer = worker.load(open_checkpoint(tmp_path), launch, 1)
    assert (answer.accepted, answer.dropped) == (True, ("backbone.embedding.weight",))
    assert "WARNING: Parameter model.embedding.weight not found in params_dict" in answer.log


WHOLE = ("gpt-oss-nvfp4", "llama4-nvfp4", "qwen3-moe-mixed", "minimax-m2-nvfp4", "gemma4-nvfp4", "glm-moe-dsa-nvfp4")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("runner", ["flashinfer_cutlass", "marlin"])
def test_the_verdict_of_a_bundled_checkpoint_is_what_loading_it_does(worker, name, runner):
    """Every tensor of the checkpoint is loaded: it fails where the verdict says so, and only there; experts without values are found."""
    checkpoint, launch = open_checkpoint(name), deployment(sglang=worker.release, runner=runner)
    answer = worker.load(checkpoint, launch, checkpoint.geometry.moe_layers[0])
    severities = {finding.severity for finding in judge(checkpoint, launch).verdict.findings}
    assert ("fails_to_load" in severities) == bool(answer.step)
    assert ("wrong_output" in severities) == (not answer.step and bool(answer.unwritten))


def test_a_damaged_block_says_where_it_ends(worker, tmp_path):
    checkpoint = damaged(open_checkpoint("qwen3-moe-mixed"), "second in BF16", 0, tmp_path)
    answer = worker.load(checkpoint, on(worker), 0)
    assert (answer.step, answer.error, answer.function) == ("load", "RuntimeError", "_load_w13")
    assert answer.file == "layers/moe/fused_moe_triton/layer.py"
    assert answer.line > 0


def test_what_cannot_be_asked_is_said_in_one_line(worker, monkeypatch):
    with pytest.raises(UsageError, match=r"no experts in layer 7; layers with experts: 0-1$"):
        worker.load(open_checkpoint("qwen3-moe-mixed"), on(worker), 7)
    with pytest.raises(UsageError, match="configurations only: loading needs its tensors"):
        worker.load(open_checkpoint("qwen3.5-397b-v2-config"), on(worker), 0)
    with pytest.raises(UsageError, match="rank 2 is not one of the 2 ranks"):
        worker.load(open_checkpoint("qwen3-moe-mixed"), on(worker, tp=2), 0, rank=2)
    checkpoint = open_checkpoint("qwen3-moe-mixed")
    monkeypatch.setattr(loading, "available_memory", lambda: layer_bytes(checkpoint, 0))
    with pytest.raises(InputError, match=r"layer 0 of qwen3-moe-mixed needs 0\.0 GiB to be loaded and this machine has 0\.0 GiB free"):
        worker.load(checkpoint, on(worker), 0)


def test_a_shard_that_ends_early_is_not_loaded(worker, tmp_path):
    whole = open_checkpoint("qwen3-moe-mixed")
    cut = damaged(whole, "nothing", 0, tmp_path)
    file = cut.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(InputError, match="cannot be loaded: "):
        worker.load(open_checkpoint(tmp_path), on(worker), 0)


def test_a_flashinfer_that_does_not_import_is_an_error_of_this_machine(there, tmp_path):
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("")
    (tmp_path / "flashinfer" / "fused_moe.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    with LoadWorker(there[-1]) as worker:
        worker.environment = replace(worker.environment, path=(str(tmp_path), *worker.environment.path))
        with pytest.raises(InputError, match=r"the FlashInfer of sglang .* does not import on this machine: OSError: libcudart"):
            worker.load(open_checkpoint("qwen3-moe-mixed"), on(worker), 0)


def test_the_command_says_where_a_load_ends(there, command):
    good = command("sglang", "load", "qwen3-moe-mixed", "--layer", "1", "--runner", "marlin", "--release", there[-1])
    assert good.returncode == 0
    assert "done without a GPU: gptq_marlin_repack" in good.stdout
    bad = command("sglang", "load", "gemma4-nvfp4", "--layer", "0", "--runner", "marlin", "--release", there[-1])
    assert bad.returncode == 1
    assert "fails at step process: RuntimeError: size_n = 352 is not divisible by tile_n_size = 64" in bad.stdout
    absent = command("sglang", "load", "qwen3-moe-mixed", "--layer", "9", "--release", there[-1])
    assert absent.returncode == 2
    assert absent.stderr.strip().endswith("qwen3-moe-mixed has no experts in layer 9; layers with experts: 0-1")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_damage_can_be_made_of_every_subject(subject, tmp_path):
    """Without a release: a kind that cannot be made would end the comparison of whoever has one."""
    checkpoint = open_checkpoint(subject)
    for kind, layer in itertools.product(KINDS, checkpoint.geometry.moe_layers[:2]):
        assert damaged(checkpoint, kind, layer, tmp_path).tensors.names


def test_questions_are_the_same_on_every_run():
    asked = questions(release("0.5.16"), 500)
    assert asked == questions(release("0.5.16"), 500)
    assert len(set(asked)) == 500
