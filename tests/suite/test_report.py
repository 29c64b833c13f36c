"""The report: one file, nothing loaded, nothing executed, nothing unlabelled."""

from html.parser import HTMLParser

import nbformat
import pytest

from helpers.findings import Finding, Verdict
from helpers.suite import report

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
ENVIRONMENT = {"python": "3.12.1", "platform": "Linux", "cpus": 2, "gpus": [], "packages": {"torch": None, "papermill": "2.7.0"}}
QUESTION = {
    "checkpoint": "x<y>",
    "sglang": "0.5.15",
    "runner": "auto",
    "a2a": "none",
    "quantization": None,
    "tp": 8,
    "ep": 1,
    "dp": 1,
    "gpu": "B200",
}
REFUSED = Finding("admit.rule", "admit", "refused", "file", "<seen>", "wanted", "because", "source", "--flag")


class Page(HTMLParser):
    """Every tag with its attributes, and that tags which must be closed are, in order."""

    VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID and tag != "p":
            while self.open and self.open[-1] == "p":
                self.open.pop()  # a paragraph may be left open
            assert self.open.pop() == tag
        elif tag == "p" and self.open and self.open[-1] == "p":
            self.open.pop()

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def code(*outputs: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell("1 < 2", outputs=list(outputs), execution_count=1)


def display(data: dict, metadata: dict | None = None) -> nbformat.NotebookNode:
    return nbformat.v4.new_output("display_data", data, metadata=metadata or {})


def notebook(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=list(cells))


def record(name: str, state: str = "pass", checks: tuple = ()) -> dict:
    counts = {
        kind: sum(check["state"] == kind for check in checks) for kind in ("pass", "fail", "error", "not_run", "known_bad", "not_reached")
    }
    return {
        "name": name,
        "state": state,
        "reason": "" if state == "pass" else "a <reason>",
        "seconds": 1.5,
        "parameters": {"checkpoint": "x<y>", "expect": ""},
        "given": ["checkpoint"],
        "counts": counts,
        "checks": list(checks),
    }


def check(id: str, state: str) -> dict:
    return {"id": id, "state": state, "observed": "1", "expected": "2", "why": "<why>", "remedy": "a remedy", "reference": ""}


def page(*cells: nbformat.NotebookNode, verdict: Verdict | None = None, records: tuple = (), question: dict | None = None) -> str:
    result = {
        "notebooks": list(records) or [record("02_admit")],
        "verdict": verdict.to_dict() if verdict else None,
        "question": question,
        "resolved": {"runner": "flashinfer_trtllm"} if question else None,
    }
    return report.page(result, ENVIRONMENT, {"02_admit": report.section(notebook(*cells))})


def test_nothing_is_loaded_and_nothing_runs():
    """Whatever the outputs hold: the policy forbids it in a browser, and the page adds nothing of the kind itself."""
    found = Page(page(nbformat.v4.new_markdown_cell("# A title\n\ntext"), code(display({"text/plain": "x"}))))
    policy = next(tag["content"] for tag in found.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in found.tags}
    assert all(
        not value.startswith("http") for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")
    )


def test_the_policy_comes_before_anything_it_must_stop():
    source = page(code(display({"text/html": "<script>alert(1)</script><img src='http://example.org/x.png' alt='x'>"})))
    assert source.index("Content-Security-Policy") < source.index("<style") < source.index("<script>")


@pytest.mark.parametrize("kind", ["image/png", "image/svg+xml"])
def test_pictures_are_inside_and_keep_their_alt_text(kind):
    data = PIXEL if kind == "image/png" else "<svg/>"
    found = Page(page(code(display({kind: data}, {kind: {"alt": 'layers "0" < 4'}}), display({kind: data, "text/plain": "<Figure>"}))))
    assert [image["alt"] for image in found.all("img")] == ['layers "0" < 4', "<Figure>"]
    assert all(image["src"].startswith(f"data:{kind};base64,") for image in found.all("img"))


def test_html_of_the_views_is_kept_as_it_is():
    figure = f'<figure><img src="data:image/png;base64,{PIXEL}" alt="a map"></figure>'
    assert figure in page(code(display({"text/html": figure, "text/plain": "a map"})))


def test_a_widget_leaves_no_trace_and_its_default_beside_it_stays():
    widget = display({report.WIDGET: {"model_id": "x"}, "text/plain": "VBox(children=...)"})
    found = Page(page(code(widget, display({"text/html": "<p>the default</p>"}))))
    assert "VBox" not in found.text and "the default" in found.text


def test_text_and_errors_are_escaped_and_have_no_terminal_codes():
    stream = nbformat.v4.new_output("stream", name="stdout", text="\x1b[31m<b>red</b>\x1b[0m")
    error = nbformat.v4.new_output("error", ename="E", evalue="v", traceback=["\x1b[0;31mE\x1b[0m: <i>v</i>"])
    found = Page(page(code(stream, error)))
    assert "<b>red</b>" in found.text and "E: <i>v</i>" in found.text and "\x1b" not in found.text
    assert not found.all("b") and not found.all("i")


def test_headings_and_links_fit_into_the_one_page():
    found = Page(page(nbformat.v4.new_markdown_cell("# Title\n\n## Part\n\n[next](03_route.ipynb), [there](03_route.ipynb#part)")))
    assert [tag for tag, _ in found.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h3"]
    assert [link["href"] for link in found.all("a") if "route" in link["href"]] == ["#03_route", "#03_route"]
    assert {"id": "02_admit"} in found.all("div")


def test_every_entry_of_the_contents_leads_somewhere():
    for verdict in (None, Verdict(()), Verdict((REFUSED,))):
        found = Page(page(verdict=verdict))
        targets = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
        assert len(targets) == len(set(targets))
        assert {link["href"].removeprefix("#") for link in found.all("a")} <= set(targets)


@pytest.mark.parametrize(("state", "opened"), [("pass", False), ("fail", True), ("kernel_died", True)])
def test_what_did_not_pass_is_open(state, opened):
    details = Page(page(records=(record("02_admit", state),))).all("details")
    assert [("open" in attributes) for attributes in details] == [opened]


def test_the_head_is_the_question_and_the_answer_in_words():
    found = Page(page(verdict=Verdict((), frozenset(("detect", "admit", "route"))), question=QUESTION))
    assert "x<y> on SGLang 0.5.15, runner auto → flashinfer_trtllm, tp 8, B200" in found.text
    assert found.text.count("serves") and "Not examined: load, run" in found.text
    assert [item.get("class") for item in found.all("li")][:5] == ["passed"] * 3 + ["not_examined"] * 2


def test_what_was_given_comes_before_the_defaults():
    items = [item for item in Page(page()).all("li") if item.get("class") in (None, "default")]
    source = page()
    assert len(items) == 2 and source.index("x&lt;y&gt;</code>") < source.index("not given")


def test_markdown_tables_and_code_work():
    found = Page(page(nbformat.v4.new_markdown_cell("| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx < 1\n```")))
    assert "x < 1" in found.text and found.all("td")


def test_code_stands_folded_above_what_it_made():
    source = page(code(display({"text/plain": "made"})))
    assert source.index("<details") < source.index("1</span>") < source.index("</details>") < source.index("made")


def test_the_summary_says_what_was_decided_and_why():
    found = Page(page(verdict=Verdict((REFUSED,), frozenset(("detect", "admit")))))
    for text in ("refused", "the server exits while it checks its arguments", "admit.rule", "<seen>", "--flag", "not examined"):
        assert text in found.text


def test_everything_that_did_not_simply_pass_is_listed():
    states = ("pass", "fail", "error", "not_run", "known_bad", "not_reached")
    found = Page(page(records=(record("02_admit", "error", tuple(check(f"a.{state}", state) for state in states)),)))
    assert "a <reason>" in found.text and "<why>" in found.text
    assert all((f"a.{state}" in found.text) is (state != "pass") for state in states)


def test_a_notebook_that_was_not_executed_says_so():
    source = page(records=(record("02_admit", "interrupted"), record("03_route", "interrupted")))
    assert "It was not executed." in source and "no notebook of this run gave one" in source
