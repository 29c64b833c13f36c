"""What the notebook shows of a load: made-up answers, so that every case is there; the real ones are asked in tests/sglang."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.checkpoint import open_checkpoint
from helpers.deployment import deployment
from helpers.nvfp4.processed import LAYOUTS
from helpers.nvfp4.proof import Proof, Row
from helpers.nvfp4.stored import Share
from helpers.sglang.loading import LoadAnswer
from helpers.stages.verdict import judge
from helpers.view import loading, weights

BLOCK = "model.layers.0.mlp.experts"


def answered(**parts) -> LoadAnswer:
    given = {"release": "0.5.23", "accepted": True, "name": BLOCK, "method": "ModelOptFp8MoEMethod", "runner": "triton"}
    return LoadAnswer(**given | parts)


def proof(*rows: Row, exact: bool = False, distance: float | None = 0.25) -> Proof:
    output = None if distance is None else SimpleNamespace(relative_l2=torch.tensor(distance))
    return Proof(LAYOUTS["marlin"], Share(0, 8), rows, exact, output, output)


def test_one_layer_of_every_kind_is_loaded():
    checkpoint = open_checkpoint("qwen3-moe-mixed-fp8-layer")
    judgement = judge(checkpoint, deployment(sglang="0.5.23"))
    assert loading.one_of_each_kind(checkpoint, judgement.routing.modules) == (0, 1)
    same = open_checkpoint("qwen3-moe-nvfp4")
    assert loading.one_of_each_kind(same, judge(same, deployment(sglang="0.5.23")).routing.modules) == (0,)


@pytest.mark.parametrize(
    ("name", "flags", "reason"),
    [
        ("qwen3.5-397b-v2-config", {}, "only the configuration of qwen3.5-397b-v2-config is here"),
        ("qwen3.5-moe-mixed", {"sglang": "0.5.15", "runner": "flashinfer_cutedsl"}, "the arguments are refused"),
        ("qwen3.5-moe-mixed", {}, ""),
    ],
)
def test_why_nothing_can_be_loaded(name, flags, reason):
    found = loading.reason_not_to(judge(open_checkpoint(name), deployment(**flags)))
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_every_tensor_is_accounted_for_once():
    checkpoint = open_checkpoint("qwen3-moe-nvfp4")
    weight = [[f"{BLOCK}.w13_weight", 0, "w1"]]
    tensors = {f"{BLOCK}.{expert}.gate_proj.weight": weight for expert in range(8)}
    tensors |= {
        f"{BLOCK}.0.up_proj.weight": [],
        "model.layers.1.self_attn.k_proj.k_scale": [],
        "lm_head.weight": [["lm_head.weight", None, None]],
    }
    rows = {row["tensors"]: (row["number"], row["written to"]) for row in loading.accounting(checkpoint, answered(tensors=tensors))}
    pattern = "model.layers.*.mlp.experts.*"
    assert rows.pop(f"{pattern}.gate_proj.weight") == (8, "w13_weight, as w1")
    assert rows.pop("model.layers.*.self_attn.k_proj.k_scale") == (1, "nowhere: read and dropped")
    assert rows.pop(f"{pattern}.up_proj.weight") == (7, "never read")  # the eighth was read: the last of equal patterns is shown here
    assert {place for _, place in rows.values()} == {"never read"} and sum(count for count, _ in rows.values()) == 8 * 10


def test_a_load_that_stopped_and_one_without_a_proof_say_why():
    stopped = loading.Loaded(0, answered(accepted=False, step="process", error="AssertionError"), None, "layer 0 was not loaded", ())
    other = loading.Loaded(1, answered(share={"experts": [4, 5]}, replaced=("scaled_fp8_quant",)), None, "is built by another method", ())
    off = Row("codes", "up", 10, 2, (1,), ("unexplained",))
    wrong = loading.Loaded(0, answered(), proof(off), "", ())
    right = loading.Loaded(0, answered(), proof(Row("codes", "up", 10, 0), exact=True, distance=0.0), "", ())
    rows = loading.blocks([stopped, other, wrong, right])
    assert [row["step reached"] for row in rows] == ["process: AssertionError", "done", "done", "done"]
    assert [row["proof"] for row in rows] == [stopped.unproved, other.unproved, "unexplained; output off by 0.25", "every bit"]
    assert rows[1]["experts held"] == 2 and rows[1]["done here instead of on a GPU"] == "scaled_fp8_quant"


def test_the_proofs_table_ends_with_the_output():
    rows = loading.compared(proof(Row("codes", "up", 10, 2, (1,), ("unexplained",))))
    assert rows[0] == {"what": "codes", "of": "up", "compared": "10", "different": "2", "because": "unexplained"}
    assert rows[1]["different"] == "yes" and rows[1]["because"].startswith("0.25 ")
    assert len(loading.compared(proof(Row("codes", "up", 10, 0), distance=None))) == 1


def test_built_and_processed_forms_stand_beside_each_other():
    answer = answered(before={"w": ["uint8", [8, 4]], "gone": ["uint8", [1]]}, after={"w": ["int32", [8]], "made": ["float32", []]})
    assert loading.forms(answer) == [
        {"tensor": "w", "built": "uint8 [8, 4]", "processed": "int32 [8]"},
        {"tensor": "gone", "built": "uint8 [1]", "processed": None},
        {"tensor": "made", "built": None, "processed": "float32 []"},
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_a_layout_are_all_rows_once(name):
    assert sorted(loading.rows_of(LAYOUTS[name], 128).tolist()) == list(range(256))


def test_the_strips_show_which_half_and_how_far_down():
    order = np.array([0, 1, 2, 3])
    axes = weights.halves({"one": order, "two": order[::-1]}, 2, ("gate", "up"), "row").axes
    first, second = (np.asarray(strip.images[0].get_array())[:, 0] for strip in axes)
    assert (first == second[::-1]).all()
    assert first[0].sum() > first[1].sum() and first[0, 2] > first[0, 0]  # lighter at the top; gate is blue
    assert first[2, 0] > first[2, 2]  # up is orange
