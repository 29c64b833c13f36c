"""What real releases hold after they loaded a checkpoint is the checkpoint, and what is not is found, with the reason."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment, release
from helpers.errors import InputError
from helpers.nvfp4 import proof as faults
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.damage import damaged
from helpers.sglang.environments import environments
from helpers.sglang.loading import LoadAnswer, LoadWorker
from helpers.sglang.oracle import askable
from helpers.sglang.proof import MEANINGS, findings, prove_load, share_of

FLAT, MIXED = "qwen3-moe-nvfp4", "qwen3.5-moe-mixed"
RUNNERS = ("auto", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass", "flashinfer_cutedsl", "marlin", "triton")


@pytest.fixture(scope="module", params=DEFAULT_RELEASES)
def worker(request):
    can, said = askable([request.param])
    if not can or not environments()[request.param].can_load:
        pytest.skip(said or f"sglang {request.param} is built without FlashInfer: python -m helpers sglang build {request.param} --load")
    with LoadWorker(request.param) as worker:
        yield worker


def loaded(worker, checkpoint, folder: Path, layer: int = 0, rank: int = 0, **flags) -> LoadAnswer:
    return worker.load(checkpoint, deployment(sglang=worker.release, **flags), layer, rank, folder)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", [FLAT, MIXED])
def test_what_a_release_holds_is_the_checkpoint(worker, name, runner, tmp_path):
    checkpoint = open_checkpoint(name)
    answer = loaded(worker, checkpoint, tmp_path, runner=runner)
    if answer.step == "prepare":  # 0.5.15 refuses flashinfer_cutedsl for a mixed checkpoint
        assert (worker.release, name, runner) in {("0.5.15", MIXED, one) for one in ("flashinfer_cutedsl", "flashinfer_trtllm_routed")}
        return
    assert answer.accepted, answer.message
    proved = prove_load(checkpoint, answer)
    assert set(proved.faults) == ({faults.GLOBALS_ROUNDED} if answer.runner == "marlin" else set())
    assert proved.exact == (answer.runner != "marlin")
    assert sum(row.compared for row in proved.rows if row.what == "codes") == 8 * 3 * 128 * checkpoint.geometry.intermediate // 2
    assert [finding.severity for finding in findings(checkpoint, answer, proved)] == ["note"] * (answer.runner == "marlin")


@pytest.mark.parametrize("runner", ["flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "marlin"])
@pytest.mark.parametrize("ranks", [{"tp": 2}, {"tp": 2, "ep": 2}], ids=["halves", "experts"])
def test_every_rank_holds_its_part(worker, runner, ranks, tmp_path):
    checkpoint = open_checkpoint(FLAT)
    for rank in (0, 1):
        answer = loaded(worker, checkpoint, tmp_path, rank=rank, runner=runner, **ranks)
        assert answer.accepted, answer.message
        proved = prove_load(checkpoint, answer)
        assert set(proved.faults) <= {faults.GLOBALS_ROUNDED}
        assert share_of(answer).first == (4 * rank if "ep" in ranks else 0)


@pytest.mark.parametrize("runner", ["flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "marlin"])
def test_a_block_without_a_gate_is_padded_with_zeros(worker, runner, tmp_path):
    """80 rows of up, kept as 128. The export's number of Mamba groups, which SGLang reads under another name, is written for it."""
    source = open_checkpoint("nemotron-h-nvfp4-repaired")
    folder = shutil.copytree(source.path, tmp_path / "checkpoint")
    (folder / "config.json").write_text(json.dumps(source.config | {"mamba_n_groups": source.config["n_groups"]}))
    checkpoint = open_checkpoint(folder)
    answer = loaded(worker, checkpoint, tmp_path, layer=1, runner=runner)
    assert answer.accepted, answer.message
    proved = prove_load(checkpoint, answer)
    assert {row.projection: row.compared for row in proved.rows if row.what == "padding"} == {"up": 8 * 48 * 8, "down": 8 * 128 * 3}
    assert set(proved.faults) <= {faults.GLOBALS_ROUNDED}


UNTIED = {
    "flashinfer_cutlass": "load.up_under_gates_global_scale",
    "flashinfer_cutedsl": "load.up_under_gates_global_scale",
    "marlin": "load.up_under_gates_global_scale",
    "flashinfer_trtllm": "load.global_scales_exchanged",
}


@pytest.mark.parametrize("runner", UNTIED)
def test_two_global_scales_are_kept_by_trtllm_of_0_5_23_alone(worker, runner, tmp_path):
    checkpoint = damaged(open_checkpoint(FLAT), "gate and up scales differ", 0, tmp_path / "checkpoint")
    answer = loaded(worker, checkpoint, tmp_path, runner=runner)
    found = [finding for finding in findings(checkpoint, answer, prove_load(checkpoint, answer)) if finding.severity != "note"]
    kept = runner == "flashinfer_trtllm" and release(worker.release).at_least("0.5.23")
    assert [finding.id for finding in found] == ([] if kept else [UNTIED[runner]])
    assert all(finding.severity == "wrong_output" and finding.releases == (worker.release,) for finding in found)


def swap_halves(tensors):
    for name in ("w13_weight", "w13_weight_scale"):
        tensors[name] = tensors[name].view(torch.uint8).roll(tensors[name].shape[1] // 2, 1).view(tensors[name].dtype)


def roll_scales(tensors):
    scales = tensors["w2_weight_scale"]
    tensors["w2_weight_scale"] = scales.view(torch.uint8).flatten(1).roll(1, 1).view(scales.shape).view(scales.dtype)


def exchange_products(tensors):
    tensors["g1_alphas"], tensors["g2_alphas"] = tensors["g2_alphas"], tensors["g1_alphas"]


def collapse(tensors):
    tensors["g1_alphas"] = tensors["g1_alphas"][:1].expand(8).contiguous()


def clear(tensors):
    tensors["w13_input_scale_quant"] = tensors["w13_input_scale_quant"] * torch.inf


@pytest.mark.parametrize(
    ("damage", "what", "fault"),
    [
        (swap_halves, "codes", faults.EXCHANGED),
        (roll_scales, "block scales", "off-by-one swizzle"),
        (exchange_products, "global scale", faults.UNEXPLAINED),
        (collapse, "global scale", faults.UNEXPLAINED),
        (clear, "input scale", faults.NOT_A_NUMBER),
    ],
)
def test_a_processed_file_that_was_damaged_is_noticed(worker, damage, what, fault, tmp_path):
    checkpoint = open_checkpoint(FLAT)
    answer = loaded(worker, checkpoint, tmp_path, runner="flashinfer_cutlass")
    tensors = load_file(answer.processed)
    assert set(prove_load(checkpoint, answer).faults) == set()
    damage(tensors)
    save_file(tensors, answer.processed)
    proved = prove_load(checkpoint, answer)
    assert fault in {fault for row in proved.rows if row.what == what for fault in row.faults}
    assert {finding.severity for finding in findings(checkpoint, answer, proved)} == {"wrong_output"}


def test_a_missing_input_scale_reaches_every_expert(worker, tmp_path):
    """From 0.5.17 on 1 stands in for it, and is the largest of all; before, it is what the memory held."""
    checkpoint = damaged(open_checkpoint(FLAT), "one expert without input scales", 0, tmp_path / "checkpoint")
    answer = loaded(worker, checkpoint, tmp_path, runner="flashinfer_trtllm")
    found = findings(checkpoint, answer, prove_load(checkpoint, answer))
    assert found and all(finding.stage == "load" for finding in found)
    if release(worker.release).at_least("0.5.17"):
        assert [finding.id for finding in found] == ["load.input_scale_missing"]


# Without a release ------------------------------------------------------------------------------------------------------


def answered(**parts) -> LoadAnswer:
    given = {"release": "0.5.16", "accepted": True, "processed": "x", "method": "ModelOptNvFp4FusedMoEMethod", "name": "model.layers.0"}
    return LoadAnswer(**given | parts)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answered(accepted=False, error="ValueError", message="no"), "layer 0 was not loaded: ValueError: no"),
        (answered(method="ModelOptFp8MoEMethod"), "is built by ModelOptFp8MoEMethod"),
        (answered(tensors={"lm_head.weight": []}), r"no tensor of qwen3-moe-nvfp4 was written into model\.layers\.0"),
    ],
)
def test_what_cannot_be_proved_is_said(answer, reason):
    with pytest.raises(InputError, match=reason):
        prove_load(open_checkpoint(FLAT), answer)


def test_a_load_that_failed_is_a_finding():
    checkpoint = open_checkpoint(FLAT)
    failed = answered(accepted=False, step="process", error="AssertionError", message="padding", file="a.py", function="f")
    (finding,) = findings(checkpoint, failed, None)
    assert (finding.id, finding.severity) == ("load.real_load_failed", "fails_to_load")
    assert finding.source == "sglang 0.5.16 a.py: f" and "AssertionError: padding" in finding.observed
    assert findings(checkpoint, answered(accepted=False, step="prepare", error="ValueError", message="refused"), None) == ()


def test_a_parameter_that_was_never_written_is_a_finding():
    checkpoint = open_checkpoint(FLAT)
    (finding,) = findings(checkpoint, answered(unwritten={"w13_weight": [7], "w2_input_scale": [1]}), None)
    assert finding.id == "load.parameter_not_written" and "w13_weight of experts 7" in finding.observed
    assert "input_scale" not in finding.observed


def test_experts_that_do_not_follow_each_other_are_refused():
    with pytest.raises(InputError, match=r"experts \[0, 2\]"):
        share_of(answered(share={"experts": [0, 2], "moe_tp_rank": 0, "moe_tp_size": 1}))


def test_every_fault_has_a_meaning():
    named = {value for name, value in vars(faults).items() if name.isupper() and isinstance(value, str)}
    general = {faults.UNEXPLAINED, faults.GLOBALS_RECIPROCAL, faults.GLOBALS_MOVED, faults.INPUTS_ONE, faults.INPUTS_FIRST}
    both = {faults.GLOBALS_EXCHANGED, faults.GLOBALS_EXCHANGED_ROUNDED, faults.GLOBALS_LARGER}
    assert named == set(MEANINGS) | general | both
