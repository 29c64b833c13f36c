"""Conditions are wired, asked, turned round, and left as they were."""

from helpers.checkpoint import open_checkpoint
from helpers.deployment import release
from helpers.sglang import breaking
from helpers.stages import detect

CHECKPOINT, RELEASE = open_checkpoint("qwen3-moe-mixed"), release("0.5.16")
MIXED = "detect.py _modelopt_name: algorithm == 'MIXED_PRECISION'"


def named() -> str | None:
    return detect.detect(CHECKPOINT, RELEASE).quantization


def test_a_condition_that_is_asked_is_seen_and_can_be_turned_round():
    with breaking.wired(detect) as wiring:
        assert named() == "modelopt_mixed"
        asked = {str(condition): condition for condition in wiring.seen}
        assert MIXED in asked
        wiring.turn(asked[MIXED])
        assert not wiring.seen
        assert named() != "modelopt_mixed"
        wiring.turn(None)
        assert named() == "modelopt_mixed"


def test_a_condition_on_another_path_is_not_seen():
    with breaking.wired(detect) as wiring:
        named()
        assert not any("older is not None" in str(condition) for condition in wiring.seen)
        assert any("older is not None" in str(condition) for condition in wiring.conditions)


def test_everything_is_as_it_was_afterwards():
    before = detect.detect.__wrapped__.__code__
    with breaking.wired(*breaking.ROUTING, *breaking.ADMISSION) as wiring:
        assert detect.detect.__wrapped__.__code__ is not before
        wiring.turn(wiring.conditions[0])
    assert detect.detect.__wrapped__.__code__ is before
    assert named() == "modelopt_mixed"


def test_the_same_text_twice_in_one_function_is_two_conditions():
    with breaking.wired(*breaking.ROUTING, *breaking.ADMISSION) as wiring:
        texts = [str(condition) for condition in wiring.conditions]
    assert len(texts) == len(set(texts)) > 500
    assert any(text.endswith(" #2") for text in texts)
