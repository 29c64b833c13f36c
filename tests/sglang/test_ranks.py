"""What a rank holds and what cannot be cut, without a release: the questions, and that every rule is missed when it is gone."""

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import Deployment, release
from helpers.errors import UsageError
from helpers.sglang.client import ModelAnswer, Worker
from helpers.sglang.environments import Environment
from helpers.sglang.ranks import RankQuestion, judge_rank, rank_questions

NEWEST = release("0.5.23")


def question(tp: int, ep: int, rank: int, name: str = "qwen3-moe-mixed") -> RankQuestion:
    return RankQuestion(open_checkpoint(name), Deployment(NEWEST, "triton", tp=tp, ep=ep), rank)


def answer(failure: dict | None = None, **share) -> ModelAnswer:
    built = {
        "name": "model.layers.0.mlp.experts",
        "num_local_experts": 2,
        "intermediate_size_per_partition": 64,
        "experts": [2, 3],
        "moe_ep_size": 4,
        "moe_ep_rank": 1,
        "moe_tp_size": 2,
        "moe_tp_rank": 0,
    }
    return ModelAnswer(release="0.5.23", accepted=True, experts=(built | share,), failure=failure)


def refused(file: str, function: str = "__init__", error: str = "AssertionError", message: str = "") -> dict:
    return {"error": error, "message": message, "file": file, "line": 1, "function": function}


# Attention is data parallel, so that 4 heads are no obstacle: rank 2 of ep 4 x tp 2.
SPREAD = RankQuestion(open_checkpoint("qwen3-moe-mixed"), Deployment(NEWEST, "triton", tp=8, ep=4, dp=8, enable_dp_attention=True), 2)


def test_a_rank_of_ep_and_tp_holds_its_experts_and_its_slice():
    assert judge_rank(SPREAD, answer()) is None


@pytest.mark.parametrize(("name", "wrong"), [("experts", [4, 5]), ("num_local_experts", 4), ("intermediate_size_per_partition", 128)])
def test_another_share_is_a_disagreement(name, wrong):
    assert name in str(judge_rank(SPREAD, answer(**{name: wrong})))


def test_what_stops_must_be_what_the_rules_say_stops():
    eight = question(8, 1, 7)  # 4 attention heads
    assert judge_rank(eight, answer(refused("models/qwen3_moe.py"))) is None
    assert "layer.py" in str(judge_rank(eight, answer(refused("layers/moe/fused_moe_triton/layer.py"))))
    assert "builds it" in str(judge_rank(eight, answer()))
    assert "builds it" in str(judge_rank(question(4, 1, 3), answer(refused("models/qwen3_moe.py"))))


def test_a_helper_that_everything_calls_must_say_the_same_words():
    tower = question(4, 1, 3, "qwen3.5-moe-mixed")  # 2 heads in the vision tower
    divide = ("distributed/utils.py", "ensure_divisibility", "AssertionError")
    assert judge_rank(tower, answer(refused(*divide, "2 is not divisible by 4"))) is None
    assert judge_rank(tower, answer(refused(*divide, "3 is not divisible by 4"))) is not None


def test_every_shape_is_asked_once_and_large_ones_seldom():
    twice = [open_checkpoint(name) for name in ("qwen3-moe-mixed", "qwen3-moe-nvfp4", "qwen3.5-397b-v2-config")]
    asked = list(rank_questions(NEWEST, twice))
    assert {asking.checkpoint.name for asking in asked} == {"qwen3-moe-mixed", "qwen3.5-397b-v2-config"}
    assert {(asking.deployment.tp, asking.deployment.ep) for asking in asked} >= {(t, e) for t in (2, 4, 8) for e in (1, t)}
    assert all(asking.rank == asking.deployment.tp - 1 for asking in asked)


def test_a_rank_that_does_not_exist_is_one_line():
    worker = Worker(Environment("0.5.23", "python", (), None, "cache"))
    with pytest.raises(UsageError, match="rank 4 is not one of the 4 ranks"):
        worker.model("folder", Deployment(NEWEST, tp=4), rank=4)
