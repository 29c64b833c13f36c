"""Tables and figures of kernel runs, live or recorded: how right, how fast, how near to what the GPU can do."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from helpers.view.figures import STYLE, WIDTH
from helpers.view.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION

Result = Mapping[str, object]
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (VERMILION, "v"))


def _asked(results: Iterable[Result], question: str) -> list[Result]:
    return [result for result in results if result["question"] == question]


def timed(results: Iterable[Result]) -> list[Result]:
    """Runs of MoE kernels that have a time, and are right: a wrong kernel has no speed."""
    return [result for result in _asked(results, "run") if "us" in result and result["right"]]


def ceilings(results: Iterable[Result]) -> Result | None:
    return next((result for result in _asked(results, "ceilings") if result["state"] == "done"), None)


def right_rows(results: Sequence[Result]) -> list[dict]:
    """One row a geometry and kernel: how many inputs, how many right, the worst of each number."""
    groups: dict[tuple, list[Result]] = {}
    for result in _asked(results, "run"):
        groups.setdefault((result["block"], result["kernel"]), []).append(result)
    return [_right_row(block, kernel, found, results) for (block, kernel), found in groups.items()]


def _right_row(block, kernel, found, results) -> dict:
    done = [result for result in found if result["state"] == "done"]
    others = [(name, agreed) for result in done for name, agreed in result["against"].items()]
    experts = next((r for r in _asked(results, "experts") if (r["block"], r["kernel"]) == (block, kernel)), {})
    return {
        "experts of": block,
        "kernel": kernel,
        "inputs": len(found),
        "right": sum(result["right"] for result in found),
        "worst cosine": f"{min((r['cosine'] for r in done), default=float('nan')):.6f}",
        "worst relative L2": f"{max((r['relative_l2'] for r in done), default=float('nan')):.1e}",
        "same bits again": f"{sum(r['bitwise'] for r in done)} of {len(done)}",
        "experts right alone": f"{experts['accepted_experts']} of {experts['experts']}" if "experts" in experts else "",
        "agrees with": ", ".join(
            f"{name} {sum(a['accepted'] for n, a in others if n == name)}x" for name in dict.fromkeys(n for n, _ in others)
        ),
    }


def wrong_rows(results: Iterable[Result]) -> list[dict]:
    """Everything that is not right: what it was, and what was seen."""
    names = ("question", "block", "kernel", "hidden", "tokens", "routing", "state", "reason", "cosine", "within", "ratio", "caught")
    return [{name: result.get(name, "") for name in names} for result in results if not result["right"]]


def fault_rows(results: Iterable[Result]) -> list[dict]:
    return [
        {"experts of": r["block"], "kernel": r["kernel"], **{fault: "caught" if c else "MISSED" for fault, c in r["caught"].items()}}
        for r in _asked(results, "faults")
        if r["state"] == "done"
    ]


def quantise_rows(results: Iterable[Result]) -> list[dict]:
    """One row a kernel and width: bytes that differ over all numbers of rows, and the time for each."""
    groups: dict[tuple, list[Result]] = {}
    for result in _asked(results, "quantise"):
        if result["state"] == "done":
            groups.setdefault((result["kernel"], result["hidden"]), []).append(result)
    return [
        {
            "kernel": kernel,
            "columns": hidden,
            "rows": ", ".join(str(r["tokens"]) for r in found),
            "code bytes off": f"{sum(r['codes_off'] for r in found)} of {sum(r['codes'] for r in found):,}",
            "scales off": f"{sum(r['scales_off'] for r in found)} of {sum(r['scales'] for r in found):,}",
            "us": ", ".join(f"{r['us']:.1f}" for r in found if "us" in r),
            "TB/s for the most rows": f"{found[-1]['tb_s']:.2f}" if "us" in found[-1] else "",
        }
        for (kernel, hidden), found in groups.items()
    ]


def speed_rows(results: Sequence[Result]) -> list[dict]:
    """One row a geometry, kernel and number of tokens; shares are of the ceilings of the same run."""
    top = ceilings(results)
    return [
        {
            "experts of": r["block"],
            "kernel": r["kernel"],
            "tokens": r["tokens"],
            "experts hit": r["hit"],
            "us": f"{r['us']:.1f}",
            "least possible us": f"{floor(r, top):.1f}" if top else "",
            "TB/s": f"{r['tb_s']:.2f}",
            "TFLOP/s": f"{r['tflop_s']:.1f}",
            "share of the ceiling": f"{floor(r, top) / r['us']:.0%}" if top else "",
        }
        for r in timed(results)
    ]


def floor(result: Result, top: Result) -> float:
    """Microseconds below which no kernel can do this: its bytes at the copy's rate, or its operations at the matrix product's."""
    return max(result["bytes"] / top["copy_tb_s"], result["flops"] / top["bf16_tflop_s"]) / 1e6


def parallel_rows(results: Iterable[Result]) -> list[dict]:
    names = {"ep": "expert parallel", "tp": "tensor parallel"}
    return [
        {
            "experts of": r["block"],
            "kernel": r["kernel"],
            "how": f"{names[r['mode']]}, {r['ranks']} GPUs",
            "tokens": r["tokens"],
            "right": "yes" if r["right"] else "NO",
            "cosine": f"{r['cosine']:.6f}",
            "us on one GPU": f"{r['us_one']:.0f}" if "us_one" in r else "",
            "us shared": f"{r['us']:.0f}" if "us" in r else "",
            "of that the kernel": f"{r['us_local']:.0f}" if "us_local" in r else "",
        }
        for r in results
    ]


def roofline(results: Sequence[Result]) -> Figure:
    """A column a geometry. Above, rate over operations a byte, below the two ceilings, where few tokens crowd at the left; below,
    the share of the ceiling that is reached, by tokens.
    """
    found, top = timed(results), ceilings(results)
    panels = list(dict.fromkeys(result["block"] for result in found))
    looks = dict(zip(dict.fromkeys(result["kernel"] for result in found), LOOKS, strict=False))
    with rc_context(STYLE):
        fig = Figure(figsize=(WIDTH, 5.6), layout="constrained")
        grid = fig.subplots(2, max(len(panels), 1), sharey="row", squeeze=False)
        for column, block in enumerate(panels):
            own = [result for result in found if result["block"] == block]
            above, below = grid[:, column]
            _roof(above, own, top)
            for kernel, (colour, marker) in looks.items():
                _points(above, below, [result for result in own if result["kernel"] == kernel], top, kernel, colour, marker)
            above.set_title(block, fontsize=9, loc="left", fontweight="bold")
            above.set_xlabel("FLOP a byte that must move")
            above.set(xscale="log", yscale="log")
            below.set_xlabel("tokens")
            below.set(xscale="log", ylim=(0, 100))
            for axis in (above.xaxis, above.yaxis, below.xaxis):
                axis.set_major_formatter("{x:g}")  # a log scale's own labels are mathematics, which STYLE leaves as it is written
                axis.set_minor_formatter(NullFormatter())
            for axes in (above, below):
                axes.spines[["top", "right"]].set_visible(False)
        grid[0, 0].set_ylabel("TFLOP/s")
        grid[1, 0].set_ylabel("% of the ceiling")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return fig


def _roof(axes, own: Sequence[Result], top: Result) -> None:
    intensity = [result["flops"] / result["bytes"] for result in own]
    ends = (min(intensity) / 2, max(intensity) * 2)
    knee = top["bf16_tflop_s"] / top["copy_tb_s"]
    across = sorted({ends[0], min(max(knee, ends[0]), ends[1]), ends[1]})
    axes.plot(across, [min(x * top["copy_tb_s"], top["bf16_tflop_s"]) for x in across], color=BLACK, linewidth=1.4, label="ceiling")


def _points(above, below, own: Sequence[Result], top: Result, kernel: str, colour: str, marker: str) -> None:
    look = {"color": colour, "marker": marker, "linewidth": 0.8, "markersize": 5}
    across, up = [r["flops"] / r["bytes"] for r in own], [r["tflop_s"] for r in own]
    above.plot(across, up, label=kernel, **look)
    below.plot([r["tokens"] for r in own], [100 * floor(r, top) / r["us"] for r in own], **look)
    for result, x, y in zip(own, across, up, strict=True):
        if result["tokens"] >= 64:
            above.annotate(
                str(result["tokens"]), (x, y), textcoords="offset points", xytext=(0, -11), ha="center", fontsize=6.5, color=GREY
            )
