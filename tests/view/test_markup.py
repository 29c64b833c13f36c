"""Values come from checkpoints that nobody vouches for: what is shown must be text, and visible text."""

import json
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.findings import SEVERITIES, Finding, Verdict
from helpers.view import markup, tables

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)>" onload="x\x00\u202e\ud800&amp;'


class Reader(HTMLParser):
    """Elements, attributes and text as a browser would take them."""

    def __init__(self, source: str):
        super().__init__()
        self.elements, self.attributes, self.words = [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.words.append(data)


def finding(severity: str = "refused", **changed) -> Finding:
    fields = ("id", "read", "observed", "expected", "why", "source", "remedy", "reference")
    values = dict.fromkeys(fields, HOSTILE) | {"stage": "admit", "severity": severity}
    return Finding(**(values | changed))


@pytest.mark.parametrize(
    "shown",
    [
        markup.table([{HOSTILE: HOSTILE}], HOSTILE),
        markup.details(HOSTILE, markup.code(HOSTILE)),
        markup.command(HOSTILE),
        markup.excerpt({HOSTILE: [HOSTILE]}),
        markup.beside({HOSTILE: markup.code(HOSTILE)}),
        tables.findings([finding()]),
    ],
    ids=["table", "details", "command", "excerpt", "beside", "findings"],
)
def test_hostile_values_stay_text(shown):
    read = Reader(shown.source)
    assert not {"script", "img"} & set(read.elements)
    assert not any(name.startswith("on") for name in read.attributes)
    assert "<script>alert(1)</script>" in "".join(read.words)
    shown.source.encode()  # a lone surrogate would not be UTF-8


@given(st.text())
def test_any_text_is_readable_again_and_holds_nothing_unprintable(value):
    read = "".join(Reader(markup.escape(value)).words)
    assert read == markup.visible(value).replace("\n", "")
    assert read.isprintable()


def test_control_characters_are_spelled_out():
    assert markup.visible("lm_head.\x00backbone\u202e") == "lm_head.\\x00backbone\\u202e"


def test_a_table_shows_the_columns_asked_for_in_order_and_says_when_it_is_empty():
    rows = [{"a": 1, "b": None, "c": 3}]
    assert Reader(markup.table(rows, columns=["c", "b"]).source).words == ["c", "b", "3", "—"]
    assert Reader(markup.table([], "Findings").source).words == ["Findings: none"]


def test_long_names_may_be_broken_at_their_dots_and_read_the_same():
    shown = markup.code("model.layers.0.mlp.experts")
    assert shown.source.count("<wbr>") == 4
    assert "".join(Reader(shown.source).words) == "model.layers.0.mlp.experts"


def test_an_excerpt_says_how_much_it_left_out():
    shown = json.loads(markup.excerpt({"a": [1, 2, 3], "b": {"x": 1}, "c": 2}, entries=2).plain)
    assert shown == {"a": [1, 2, "… 1 more"], "b": {"x": 1}, "…": "1 more"}


def test_an_excerpt_of_deep_nesting_ends():
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert markup.excerpt(deep).plain.count("[") == 8


def test_plain_text_stands_beside_the_html():
    assert repr(markup.table([{"a": markup.code("x"), "b": None}], "T")) == "T\na | b\nx | —"


def test_findings_come_worst_first_and_every_severity_has_a_word():
    shown = tables.findings([finding(s, why=f"why {s}") for s in reversed(SEVERITIES)]).plain
    assert [shown.index(f"why {s}") for s in SEVERITIES] == sorted(shown.index(f"why {s}") for s in SEVERITIES)


def test_stages_name_state_of_all_five():
    verdict = Verdict((finding(),), frozenset({"detect", "admit"}))
    lines = tables.stages(verdict).plain.splitlines()[2:]
    states = [" | ".join(line.split(" | ")[:2]) for line in lines]
    assert states == ["detect | ✔ passed", "admit | ✖ failed", "route | ○ not examined", "load | ○ not examined", "run | ○ not examined"]


def test_verdict_says_outcome_reason_remedy_and_what_was_not_examined():
    shown = tables.verdict(Verdict((finding(),), frozenset({"detect", "admit"})), HOSTILE).source
    words = "".join(Reader(shown).words)
    assert "refused" in words and "Decided by" in words and "What to do" in words and "Not examined: route, load, run." in words
    assert "script" not in Reader(shown).elements
    nothing_against = "".join(Reader(tables.verdict(Verdict((), frozenset({"detect"})), "x").source).words)
    assert "serves" in nothing_against and "Decided by" not in nothing_against


def test_compared_steps_mark_the_rows_that_differ():
    def step(question, answer):
        return SimpleNamespace(question=question, value="v", answer=answer)

    shown = tables.steps_compared({"old": [step("a", "yes"), step("b", "no")], "new": [step("a", "yes"), step("b", "yes"), step("c", "x")]})
    assert shown.plain.splitlines()[2:] == [" | a | yes (v) | yes (v)", "≠ | b | no (v) | yes (v)", "≠ | c | — | x (v)"]


def test_a_source_that_all_steps_share_is_said_once():
    def step(source):
        return SimpleNamespace(question="q", read="r", value="v", answer="a", source=source)

    assert tables.steps([step("same.py"), step("same.py")]).plain.count("same.py") == 1
    assert tables.steps([step("one.py"), step("two.py")]).plain.splitlines()[1] == "# | question | read | value | answer | source"
