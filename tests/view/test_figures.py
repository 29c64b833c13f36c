"""Figures hold what they claim: every text inside the picture, no two texts on each other, alt text and numbers beside."""

import datetime
from itertools import combinations
from types import SimpleNamespace

import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from helpers.view import figures, layers
from helpers.view.palette import ADMISSION_MARKS, ALGORITHM_MARKS, SEVERITY_MARKS, STAGE_MARKS, algorithm_mark

RELEASES = [f"0.5.{n}" for n in range(11, 24)] + ["0.5.12.post1"]


def module(layer: int | None, name: str, algo: str | None, method: str = "ModelOptFp8LinearMethod", stack: str = "model.layers"):
    prefix = name if layer is None else f"{stack}.{layer}.{name}"
    return SimpleNamespace(prefix=prefix, layer=layer, algo=algo, method=method)


def modules(count: int) -> list:
    found = [module(None, "lm_head", None), module(0, "mlp.experts", None, "UnquantizedFusedMoEMethod", "mtp.layers")]
    for layer in range(count):
        found.append(module(layer, "self_attn.qkv_proj" if layer % 4 == 3 else "linear_attn.in_proj_qkvz", "FP8"))
        algo, method = ("NVFP4", "ModelOptNvFp4FusedMoEMethod") if layer != 1 else (None, "UnquantizedFusedMoEMethod")
        found.append(module(layer, "mlp.experts", algo, method))
        found.append(module(layer, "mlp.shared_expert.down_proj", "$<b>" if layer % 2 else "MXFP8"))
    return found


def texts_of(fig) -> list[tuple]:
    """Every visible text of a figure with its box in pixels, after layout."""
    with rc_context(figures.STYLE):
        canvas = FigureCanvasAgg(fig)
        canvas.draw()
        found = {id(t): t for t in fig.findobj(Text)}.values()  # findobj meets the texts of a legend twice
        shown = [t for t in found if t.get_visible() and t.get_text().strip()]
        return [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in shown]


def assert_readable(fig) -> None:
    texts = texts_of(fig)
    assert texts
    for text, box in texts:
        assert fig.bbox.x0 - 1 <= box.x0 and box.x1 <= fig.bbox.x1 + 1, f"{text!r} is cut off at a side"
        assert fig.bbox.y0 - 1 <= box.y0 and box.y1 <= fig.bbox.y1 + 1, f"{text!r} is cut off at top or bottom"
    for (one, a), (two, b) in combinations(texts, 2):
        across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 2 or down <= 2, f"{one!r} and {two!r} lie on each other"


@pytest.mark.parametrize("count", [1, 2, 8, 24, 60, 100])
def test_layer_map_is_readable_at_any_depth(count):
    assert_readable(figures.layer_map(layers.grid(modules(count))))


def test_layer_map_names_the_algorithm_in_the_box_where_it_fits():
    words = [text for text, _ in texts_of(figures.layer_map(layers.grid(modules(60))))]
    assert words.count("NVFP4") == 2  # the long run of layers, and the legend
    assert "ModelOptNvFp4FusedMoEMethod ×59, UnquantizedFusedMoEMethod ×1" in words


def test_matrix_and_timeline_are_readable():
    states = list(ADMISSION_MARKS)
    rows = ["auto", "flashinfer_trtllm_routed", "flashinfer_cutedsl"]
    cells = {(r, c): states[(i + j) % 3] for i, r in enumerate(rows) for j, c in enumerate(RELEASES)}
    for count in (1, 2, 3, 4):
        panels = {f"panel {n}": cells for n in range(count)}
        assert_readable(figures.matrix(panels, rows, RELEASES, ADMISSION_MARKS, frame=["0.5.15", "0.5.16"], xlabel="SGLang release"))
    start = datetime.date(2026, 5, 7)
    dates = {f"0.5.{n}": str(start + datetime.timedelta(days=13 * (n - 11))) for n in range(11, 24)}
    lanes = {row: {release: states[n % 2] for n, release in enumerate(dates)} for row in rows}
    assert_readable(figures.timeline(lanes, dates, ADMISSION_MARKS))


def test_bars_are_readable_and_carry_their_unit():
    fig = figures.bars({"BF16": 773.1, "FP8": 386.5, "NVFP4": 217.4}, "GB")
    assert_readable(fig)
    assert " 773 GB" in [text for text, _ in texts_of(fig)]


def test_the_matrix_as_a_table_joins_neighbouring_columns():
    cells = {("cutedsl", "0.5.14"): "refused", ("cutedsl", "0.5.15"): "refused", ("cutedsl", "0.5.16"): "accepted"}
    assert figures.matrix_rows({"mixed": cells}, ["0.5.14", "0.5.15", "0.5.16"], ADMISSION_MARKS) == [
        {"panel": "mixed", "row": "cutedsl", "state": "refused", "columns": "0.5.14 to 0.5.15"},
        {"panel": "mixed", "row": "cutedsl", "state": "accepted", "columns": "0.5.16"},
    ]


def test_a_text_that_lies_on_another_is_noticed():
    fig = figures.layer_map(layers.grid(modules(2)))
    fig.axes[0].text(0.5, 0.5, "on top of something")
    with pytest.raises(AssertionError, match="lie on each other"):
        assert_readable(fig)


def test_picture_has_alt_text_and_its_numbers_and_neither_may_lack():
    fig = figures.timeline({"lane": {"0.5.15": "refused"}}, {"0.5.15": "2026-07-10"}, ADMISSION_MARKS)
    shown = figures.embed(fig, alt='one "lane" <b>', rows=[{"release": "0.5.15", "state": "refused"}], caption="<i>")
    assert 'alt="one &quot;lane&quot; &lt;b&gt;"' in shown.source
    assert "data:image/png;base64," in shown.source and "<details>" in shown.source and "0.5.15" in shown.plain
    for alt, rows in (("", [{"a": 1}]), ("text", [])):
        with pytest.raises(ValueError, match="alt text and a table"):
            figures.embed(fig, alt=alt, rows=rows)


@pytest.mark.parametrize("marks", [ADMISSION_MARKS, SEVERITY_MARKS, STAGE_MARKS], ids=["admission", "severity", "stage"])
def test_no_two_states_share_a_word_and_symbols_differ(marks):
    assert len({m.word for m in marks.values()}) == len(marks)
    assert len({m.symbol for m in marks.values()}) >= len(marks) - (marks is SEVERITY_MARKS)  # unknown is what abstained became


def test_no_two_algorithms_look_alike_without_colour_or_name():
    looks = {(m.colour, m.hatch) for m in ALGORITHM_MARKS.values()}
    assert len(looks) == len(ALGORITHM_MARKS) - 1  # FP8_PB_WO and FP8_BLOCK_SCALES are two names of one format
    assert algorithm_mark("int9").word == "int9"
    assert algorithm_mark(None).word == "not quantised"


def test_grid_keeps_a_second_stack_apart_and_puts_modules_of_no_layer_outside():
    grid = layers.grid(modules(4))
    assert grid.layers == (0, 1, 2, 3)
    assert grid.names[-1] == "mtp.layers: mlp.experts"
    assert [m.prefix for m in grid.outside] == ["lm_head"]
    assert grid.runs("mlp.experts") == [(0, 1, "NVFP4"), (1, 1, None), (2, 2, "NVFP4")]
    assert grid.runs("self_attn.qkv_proj") == [(3, 1, "FP8")]
    experts = [row for row in grid.rows() if row["module"] == "mlp.experts"]
    assert [(row["layers"], row["count"], row["algorithm"]) for row in experts] == [("0, 2-3", 3, "NVFP4"), ("1", 1, None)]


def test_every_module_can_be_picked_by_layer_and_name():
    found = modules(12)
    picked = layers.grid(found).by_layer()
    assert sorted(m.prefix for m in picked.values()) == sorted(m.prefix for m in found)
    assert list(dict.fromkeys(layer for layer, _ in picked)) == [*map(str, range(12)), "none"]
    assert picked["0", "mtp.layers: mlp.experts"].prefix == "mtp.layers.0.mlp.experts"


def test_grid_of_nothing():
    assert layers.grid([]).rows() == []


@pytest.mark.parametrize(("name", "limit", "short"), [("abc", 5, "abc"), ("abcdefghij", 5, "ab…ij"), ("a\x00b", 9, "a\\x00b")])
def test_shorten_cuts_in_the_middle(name, limit, short):
    assert figures.shorten(name, limit) == short
    assert len(short) <= max(limit, 6)
