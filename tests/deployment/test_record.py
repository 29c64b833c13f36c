"""The tables recorded from the releases' own parsers, and the script that merges a new release into them."""

import json

from helpers.deployment import RELEASES, keeps_nested_section, release, releases_with
from helpers.deployment.flags import flags
from helpers.deployment.launch import FIELDS
from helpers.deployment.record import merged, spans, written
from helpers.paths import DATA

ORDER = ["1", "2", "3"]
SHAPE = {"dest": "x", "takes": "one"}


def test_an_unchanged_flag_moves_its_end_on():
    table = merged(merged({}, "1", ORDER, {"--x": SHAPE}), "2", ORDER, {"--x": SHAPE})
    assert table == {"--x": [{"first": "1", "last": "2", **SHAPE}]}


def test_a_changed_flag_gets_a_second_shape():
    table = merged(merged({}, "1", ORDER, {"--x": SHAPE}), "2", ORDER, {"--x": SHAPE | {"takes": "none"}})
    assert [(shape["first"], shape["last"]) for shape in table["--x"]] == [("1", "1"), ("2", "2")]


def test_a_flag_that_went_away_and_came_back():
    table = merged({"--x": [{"first": "1", "last": "1", **SHAPE}]}, "3", ORDER, {"--x": SHAPE})
    assert [(shape["first"], shape["last"]) for shape in table["--x"]] == [("1", "1"), ("3", "3")]


def test_recording_twice_changes_nothing():
    once = merged({}, "1", ORDER, {"--x": SHAPE})
    assert merged(json.loads(written(once)), "1", ORDER, {"--x": SHAPE}) == once
    types = spans({}, "2", ORDER, ["a"])
    assert spans(json.loads(written(types)), "2", ORDER, ["a"]) == types == {"a": {"first": "2", "last": "2"}}


def test_the_files_are_as_the_script_writes_them():
    for file in ("flags.json", "lost_sections.json", "model_types.json"):
        text = (DATA / file).read_text()
        assert text == written(json.loads(text))


def test_every_release_is_recorded():
    for known in RELEASES:
        assert len(flags(known)) > 300
        assert known in releases_with("qwen3_moe")


def test_every_field_the_rules_read_is_a_flag_of_some_release():
    dests = {flag.dest for known in RELEASES for flag in flags(known).values()}
    assert set(FIELDS) <= dests


def test_model_types_begin_where_they_begin():
    assert releases_with("minimax_m3_vl")[0] == release("0.5.15")
    assert releases_with("deepseek_v4")[0] == release("0.5.12")
    assert releases_with("no_such_model") == ()


def test_a_config_class_of_sglangs_own_keeps_a_nested_section_or_loses_it():
    newest = RELEASES[-1]
    assert keeps_nested_section("qwen3_5_moe", "text_config", newest) is False
    assert keeps_nested_section("kimi_k25", "text_config", newest) is True
    assert keeps_nested_section("gemma4", "text_config", newest) is True  # transformers' own class
    assert keeps_nested_section("no_such_model", "text_config", newest) is None
