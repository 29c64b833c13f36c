"""Tables and the roofline of kernel runs, from results as a run gives them."""

import pytest

from helpers.view import figures, kernel_runs

TOP = {"question": "ceilings", "state": "done", "right": True, "copy_tb_s": 4.0, "bf16_tflop_s": 800.0}


def run(tokens=1, **changed):
    usual = {"question": "run", "block": "model", "kernel": "b12x", "tokens": tokens, "routing": "random", "state": "done", "right": True}
    numbers = {"cosine": 0.99999, "relative_l2": 2e-3, "within": 1.0, "ratio": 0.7, "bitwise": True, "hit": 8, "against": {}}
    speed = {"us": 50.0, "bytes": 1e8, "flops": 1e9 * tokens, "tb_s": 2.0, "tflop_s": 20.0 * tokens}
    return usual | numbers | speed | changed


CRASHED = {
    "question": "run",
    "block": "model",
    "kernel": "b12x",
    "tokens": 4,
    "state": "crashed",
    "right": False,
    "reason": "signal SIGSEGV",
}
FAULTS = {
    "question": "faults",
    "block": "model",
    "kernel": "b12x",
    "state": "done",
    "right": False,
    "caught": {"swapped": True, "scale": False},
}
ALONE = {"question": "experts", "block": "model", "kernel": "b12x", "state": "done", "right": True, "experts": 5, "accepted_experts": 5}
BYTES = {"question": "quantise", "kernel": "q", "tokens": 1, "hidden": 7168, "state": "done", "right": True} | {
    "codes_off": 0, "codes": 3584, "scales_off": 0, "scales": 448
}  # fmt: skip


def test_a_row_counts_what_is_right_and_shows_the_worst():
    results = [run(1, against={"frost": {"accepted": True, "cosine": 1.0}}), run(2, right=False, cosine=0.9, bitwise=False), CRASHED, ALONE]
    (row,) = kernel_runs.right_rows(results)
    assert (row["inputs"], row["right"], row["worst cosine"]) == (3, 1, "0.900000")
    assert row["same bits again"] == "1 of 2" and row["experts right alone"] == "5 of 5" and row["agrees with"] == "frost 1x"


def test_everything_wrong_is_listed_with_its_reason_in_even_rows():
    rows = kernel_runs.wrong_rows([run(), CRASHED, FAULTS])
    assert [row["reason"] for row in rows] == ["signal SIGSEGV", ""] and rows[0].keys() == rows[1].keys()


def test_a_missed_fault_is_shouted():
    assert kernel_runs.fault_rows([FAULTS])[0]["scale"] == "MISSED"


def test_the_floor_is_the_slower_of_memory_and_arithmetic():
    assert kernel_runs.floor(run(), TOP) == pytest.approx(25.0)
    assert kernel_runs.floor(run(flops=8e11), TOP) == pytest.approx(1000.0)


def test_a_wrong_kernel_has_no_speed():
    assert kernel_runs.speed_rows([TOP, run(right=False)]) == []
    (row,) = kernel_runs.speed_rows([TOP, run()])
    assert row["share of the ceiling"] == "50%" and row["least possible us"] == "25.0"


def test_bytes_that_differ_are_counted_over_all_numbers_of_rows():
    more = BYTES | {"tokens": 2, "codes_off": 8, "scales_off": 1, "us": 3.21, "tb_s": 0.5}
    (row,) = kernel_runs.quantise_rows([BYTES, more])
    assert (row["rows"], row["code bytes off"], row["scales off"]) == ("1, 2", "8 of 7,168", "1 of 896")
    assert row["us"] == "3.2" and row["TB/s for the most rows"] == "0.50"


def test_the_roofline_draws_a_panel_a_model_and_has_a_table():
    results = [TOP, run(1), run(2), run(1, block="other", kernel="frost")]
    picture = kernel_runs.roofline(results)
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["model", "other", "", ""]
    shares = [line for axes in picture.axes[2:] for line in axes.lines if len(line.get_ydata())]
    assert [list(line.get_ydata()) for line in shares] == [[50.0, 50.0], [50.0]], "25 us are possible and 50 were taken"
    shown = figures.embed(picture, alt="a roofline", rows=kernel_runs.speed_rows(results))
    assert "a roofline" in str(shown)


def test_the_rooflines_scales_are_labelled_with_plain_numbers():
    picture = kernel_runs.roofline([TOP, *(run(tokens) for tokens in (1, 64, 4096))])
    labels = {label.get_text() for axes in picture.axes for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels(which="both")}
    assert {"1", "1000"} <= labels and all(float(label) >= 0 for label in labels if label)


def test_several_gpus_are_one_row_a_case():
    result = {
        "mode": "ep",
        "ranks": 2,
        "block": "model",
        "kernel": "b12x",
        "tokens": 8,
        "right": True,
        "cosine": 0.99999,
        "us": 80.0,
        "us_one": 120.0,
    }
    (row,) = kernel_runs.parallel_rows([result])
    assert row["how"] == "expert parallel, 2 GPUs" and row["us on one GPU"] == "120" and row["of that the kernel"] == ""
