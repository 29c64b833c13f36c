"""What changed between two snapshots, in words; and the recorded ones are what the repository promises."""

import json

import pytest

from helpers.deployment import RELEASES
from helpers.errors import InputError, UsageError
from helpers.sglang import snapshot
from helpers.sglang.oracle import askable


def made(**answers) -> dict:
    """A snapshot of two checkpoints and two launches; answers: launch -> the answer of both."""
    texts = list(dict.fromkeys(answers.values()))
    row = [texts.index(text) for text in answers.values()]
    return {
        "shape": 1,
        "choices": {"--moe-runner-backend": ["auto", "triton"]},
        "launches": list(answers),
        "answers": texts,
        "checkpoints": {"one": row, "two": row},
    }


def test_nothing_changed_says_nothing():
    assert snapshot.changes(made(a="accepted: runner auto"), made(a="accepted: runner auto")) == []


def test_between_two_accepted_only_the_difference_is_said():
    said = snapshot.changes(made(a="accepted: runner auto, ep 1"), made(a="accepted: runner marlin, ep 1"))
    assert said == ["still accepted, with runner auto → marlin\n    for a\n    with one; two"]


def test_refusals_that_came_and_went():
    old = made(a="accepted: ep 1", b="refused by f g: ValueError: no")
    new = made(a="refused by f g: ValueError: no", b="accepted: ep 1")
    came, went = sorted(snapshot.changes(old, new))
    assert came.startswith("accepted before, now refused by f g: ValueError: no\n    for a")
    assert went.startswith("refused before (f g: ValueError: no), now accepted: ep 1\n    for b")


def test_a_refusal_in_other_words_says_the_words():
    said = snapshot.changes(made(a="refused by f g: E: only 'x', or None."), made(a="refused by f g: E: only 'x', 'y', or None."))
    assert said == ["still refused by f g: E, in other words: without any, with 'y',\n    for a\n    with one; two"]


def test_new_choices_are_said_first():
    new = made(a="accepted: ep 1") | {"choices": {"--moe-runner-backend": ["auto", "new_one"]}}
    assert snapshot.changes(made(a="accepted: ep 1"), new)[:2] == ["--moe-runner-backend: new new_one", "--moe-runner-backend: gone triton"]


def test_only_launches_of_both_are_compared():
    assert snapshot.changes(made(a="accepted: ep 1"), made(b="accepted: ep 2")) == []


def test_a_release_newer_than_all_known_comes_after_them():
    assert snapshot.before(snapshot.release_of("9.9.9")) == RELEASES[-1]
    assert snapshot.before(RELEASES[0]) is None


def test_a_broken_record_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "RECORDED", tmp_path)
    assert snapshot.read("0.5.23") is None
    snapshot.path_of("0.5.23").write_text("{")
    with pytest.raises(InputError, match=r"not JSON .* record it again: python -m helpers sglang snapshot 0\.5\.23"):
        snapshot.read("0.5.23")
    snapshot.path_of("0.5.23").write_text('{"shape": 0}')
    with pytest.raises(InputError, match="shape 0, not 1"):
        snapshot.read("0.5.23")


@pytest.mark.parametrize("path", sorted(snapshot.RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_snapshots_are_small_labelled_and_whole(path):
    recorded = snapshot.read(path.stem)
    assert path.stat().st_size < 300_000
    assert recorded["release"] == recorded["versions"]["sglang"] == path.stem
    assert recorded["recorded"]
    assert "no kernel ran" in recorded["how"]
    assert all(len(row) == len(recorded["launches"]) for row in recorded["checkpoints"].values())
    assert "/tmp" not in json.dumps(recorded["answers"])


def test_the_oracle_modes(monkeypatch, tmp_path):
    monkeypatch.setenv("NVFP4_CACHE", str(tmp_path))
    monkeypatch.delenv("SGLANG_PYTHON", raising=False)
    assert askable(["0.5.16"], "off") == ([], "no real release was asked (oracle: off)")
    assert askable(["0.5.16"], "auto") == ([], 'not asked, because not built: sglang 0.5.16 (make sglang RELEASES="0.5.16")')
    with pytest.raises(UsageError, match=r"sglang 0\.5\.15, 0\.5\.16 not built, and the oracle is required"):
        askable(["0.5.15", "0.5.16"], "required")
    monkeypatch.setenv("ORACLE", "requierd")
    with pytest.raises(UsageError, match="did you mean required"):
        askable(["0.5.16"])
