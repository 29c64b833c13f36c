import json

import numpy
import pytest

from helpers.findings import Finding, Verdict
from helpers.suite.checks import RECORD_FILE, Checks, ChecksFailed

REFUSED = Finding("admit.rule", "admit", "refused", "file", "seen", "wanted", "because", "source", "--flag")


@pytest.fixture
def shown(monkeypatch):
    """What the checks displayed, as (html, text)."""
    displayed = []
    monkeypatch.setattr("helpers.suite.checks._display", lambda as_html, as_text: displayed.append((as_html, as_text)))
    return displayed


@pytest.fixture
def checks(shown, monkeypatch):
    monkeypatch.delenv(RECORD_FILE, raising=False)
    return Checks()


def test_a_failed_check_does_not_raise_and_finish_does(checks):
    checks.check("a.right", 2, 2, "two is two")
    checks.check("a.wrong", 1, 2, "one is two", "count again")
    with pytest.raises(ChecksFailed, match=r"1 of 2 checks failed: a\.wrong"):
        checks.finish()


def test_finish_passes_when_all_checks_do(checks, shown):
    checks.check("a.right", "x", "x", "the same")
    checks.not_run("a.gpu", "needs a B200")
    checks.finish()
    assert "not run" in shown[-1][0] and "needs a B200" in shown[-1][1]


def test_no_checks_at_all_is_a_failure(checks):
    with pytest.raises(ChecksFailed, match="checked nothing"):
        checks.finish()


def test_known_bad_fails_on_the_day_it_is_right(checks):
    checks.known_bad("a.bug", 1, 2, "off by one", "issue 7")
    checks.finish()
    checks.known_bad("a.bug", 2, 2, "off by one", "issue 7")
    with pytest.raises(ChecksFailed, match=r"a\.bug"):
        checks.finish()


def test_a_reason_is_required(checks):
    with pytest.raises(ValueError, match="reason"):
        checks.not_run("a.gpu", "")
    with pytest.raises(ValueError, match="reference"):
        checks.known_bad("a.bug", 1, 2, "why", "")


def test_a_value_without_one_truth_is_an_error_not_a_pass(checks):
    with pytest.raises(ValueError, match="ambiguous"):
        checks.check("a.array", numpy.array([1, 2]), numpy.array([1, 3]), "element by element")
    assert not checks.records


def test_running_a_cell_again_replaces_its_row(checks):
    checks.check("a.x", 1, 2, "wrong")
    checks.check("a.x", 2, 2, "mended")
    checks.finish()


@pytest.mark.parametrize(
    ("expect", "stage", "fails"), [("", None, True), ("refused", None, False), ("", "detect", False), ("", "admit", True)]
)
def test_finish_compares_the_verdict_with_expect(checks, expect, stage, fails):
    verdict = Verdict((REFUSED,), frozenset(("detect", "admit")))
    if fails:
        with pytest.raises(ChecksFailed, match="expect"):
            checks.finish(verdict, expect, stage)
        assert checks.records["expect"].remedy == "--flag"
    else:
        checks.finish(verdict, expect, stage)


def test_names_from_a_checkpoint_cannot_become_html(checks, shown):
    checks.check("a.<b>", "<script>alert(1)</script>", "x", "<i>why</i>", "<u>remedy</u>")
    with pytest.raises(ChecksFailed):
        checks.finish()
    for as_html, _ in shown:
        assert not any(tag in as_html for tag in ("<script", "<i>", "<u>", "<b>"))


def test_long_values_are_cut_in_the_row_and_say_so(checks, shown):
    checks.check("a.long", "x" * 5000, "x" * 5000, "long")
    assert len(shown[0][0]) < 2000 and "5000 characters" in shown[0][0]
    assert len(checks.records["a.long"].observed) == 5000


def test_every_record_is_on_disk_before_the_next(checks, tmp_path, monkeypatch):
    path = tmp_path / "checks.jsonl"
    monkeypatch.setenv(RECORD_FILE, str(path))
    checks.check("a.one", 1, 1, "one")
    assert json.loads(path.read_text())["id"] == "a.one"
    checks.finish(Verdict((REFUSED,)), "refused")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("id", "finished") for line in lines] == ["a.one", "expect", "finished"]
    assert lines[-1]["verdict"]["outcome"] == "refused"


def test_under_the_runner_an_id_is_used_once(checks, tmp_path, monkeypatch):
    monkeypatch.setenv(RECORD_FILE, str(tmp_path / "checks.jsonl"))
    checks.check("a.one", 1, 2, "wrong")
    with pytest.raises(ValueError, match="twice"):
        checks.check("a.one", 2, 2, "would hide the first")


def test_without_the_runner_nothing_is_written(checks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checks.check("a.one", 1, 1, "one")
    checks.finish()
    assert not list(tmp_path.iterdir())
