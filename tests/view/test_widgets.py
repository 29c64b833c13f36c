"""Explorers show what was computed: every selection they can reach has a result, and a callback never raises."""

import pytest

from helpers.view.markup import Markup
from helpers.view.widgets import Explorer

RESULTS = {
    ("0.5.15", "cutedsl", "none"): "refused",
    ("0.5.15", "auto", "none"): "accepted",
    ("0.5.16", "cutedsl", "none"): "accepted",
    ("0.5.16", "cutedsl", "deepep"): "accepted, deepep",
}


def explorer(default=("0.5.15", "cutedsl", "none")) -> Explorer:
    return Explorer(("release", "runner", "a2a"), RESULTS, lambda result: Markup(f"<b>{result}</b>"), default)


def test_every_result_can_be_chosen_and_is_what_is_shown():
    shown = explorer()
    for key, result in reversed(RESULTS.items()):
        for dropdown, value in zip(shown.dropdowns, key, strict=True):
            dropdown.value = value
        assert shown.selection == key
        assert shown.view.value == f"<p><b>Chosen:</b> release {key[0]}, runner {key[1]}, a2a {key[2]}</p><b>{result}</b>"


def test_later_controls_offer_only_what_exists_and_keep_the_choice_where_they_can():
    shown = explorer(("0.5.16", "cutedsl", "deepep"))
    assert shown.dropdowns[2].options == ("none", "deepep")
    shown.dropdowns[0].value = "0.5.15"
    assert shown.selection == ("0.5.15", "cutedsl", "none")
    assert shown.dropdowns[1].options == ("cutedsl", "auto")
    assert shown.view.value.endswith("<b>refused</b>")


def test_the_default_must_have_a_result():
    with pytest.raises(ValueError, match="has no result"):
        explorer(("0.5.99", "cutedsl", "none"))


def test_default_is_displayed_as_html_beside_the_controls(capsys):
    explorer().show()
    # Without a notebook, IPython prints the plain text of what it would show.
    assert "Default: release 0.5.15, runner cutedsl, a2a none" in capsys.readouterr().out
