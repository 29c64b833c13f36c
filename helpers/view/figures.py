"""Figures: one palette, a symbol or hatch beside every colour, alt text, and a table of the same numbers.

The figures are drawn with matplotlib's object interface: no global state, and nothing is displayed twice.
"""

import base64
import html
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date

from IPython.display import display
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.view import markup
from helpers.view.layers import LayerGrid, runs
from helpers.view.markup import Markup, details, escape, visible
from helpers.view.palette import BLUE, PAPER, Mark, algorithm_mark

DPI = 150
WIDTH = 10.0  # inches: what a JupyterLab cell and a nbconvert page show without scaling
STYLE = {"font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False, "hatch.linewidth": 0.6}


def show(fig: Figure, *, alt: str, table: Sequence[Mapping[str, object]], caption: str = "") -> None:
    """Display a figure with alt text and, folded under it, the table of the numbers it draws.

    alt: what a reader who cannot see the figure must know; empty is an error. table: one mapping a row.
    """
    display(embed(fig, alt=alt, rows=table, caption=caption))


def embed(fig: Figure, *, alt: str, rows: Sequence[Mapping[str, object]], caption: str = "") -> Markup:
    """The HTML of ``show``: the picture is inside it as base64, so that a report opens offline.

    An ``<img alt>`` of ours, because nbconvert's lab template ignores the alt text of an image/png output.
    """
    if not alt.strip() or not rows:
        raise ValueError("a figure needs alt text and a table of its numbers")
    buffer = io.BytesIO()
    with rc_context(STYLE):
        fig.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    width = round(fig.get_figwidth() * 96)
    picture = (
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(visible(alt))}" width="{width}" style="max-width:100%;height:auto">'
    )
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    figure = Markup(f'<figure style="margin:.4em 0">{picture}{below}</figure>', alt)
    return figure + details("The same as a table", markup.table(rows))


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _cell(axes, x: float, y: float, mark: Mark, *, width: float = 1.0, label: str = "", fontsize: float = 8) -> None:
    """One box of a row: colour, hatch, and the symbol or label in the middle, on a patch of its colour where a hatch crosses it."""
    edge = "lightgrey" if mark.colour == PAPER else "white"
    box = Rectangle((x, y), width, 1, facecolor=mark.colour, edgecolor=edge, linewidth=1.2, hatch=mark.hatch or None)
    # Inside the axes anyway: measuring hundreds of them for the layout would take most of the time.
    box.set_in_layout(False)
    axes.add_patch(box)
    if label:
        patch = {"facecolor": mark.colour, "edgecolor": "none", "pad": 1.5} if mark.hatch else None
        text = axes.text(x + width / 2, y + 0.5, label, ha="center", va="center", fontsize=fontsize, color="black", bbox=patch)
        text.set_in_layout(False)


def _bare(axes) -> None:
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(fig: Figure, marks: Sequence[Mark], columns: int = 5, symbols: bool = True) -> None:
    handles = [Rectangle((0, 0), 1, 1, facecolor=m.colour, edgecolor="grey", linewidth=0.5, hatch=m.hatch or None) for m in marks]
    labels = [f"{m.symbol}  {m.word}" if symbols else m.word for m in marks]
    fig.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(marks)), frameon=False)


def shorten(value: object, limit: int) -> str:
    """A name at most ``limit`` characters long, cut in the middle, where names from one model differ least."""
    text = visible(value).replace("\n", " ")
    if len(text) <= limit:
        return text
    keep = limit - 1
    return text[: keep // 2] + "…" + text[len(text) - (keep - keep // 2) :]


def layer_map(grid: LayerGrid) -> Figure:
    """Layers across, modules down, colour and hatch the algorithm; at the right of a row, the methods its modules get.

    Neighbouring layers with one algorithm are one box, so that 2 layers and 100 read alike; a box that is wide enough names
    its algorithm, and the legend names the rest.
    """
    count = len(grid.layers)
    inches = 3.6 / max(count, 1)  # of one layer, about
    with rc_context(STYLE):
        fig = _figure(WIDTH, 1.3 + 0.3 * len(grid.names))
        axes = fig.subplots()
        for row, name in enumerate(grid.names):
            for start, length, algo in grid.runs(name):
                mark = algorithm_mark(algo)
                label = shorten(mark.word, 14)
                fits = length * inches > 0.08 * len(label)
                _cell(axes, start, row, mark, width=length, label=label if fits else "", fontsize=7.5)
        axes.set_xlim(0, count)
        axes.set_ylim(len(grid.names), 0)
        axes.set_yticks([y + 0.5 for y in range(len(grid.names))], [shorten(name, 34) for name in grid.names])
        step = 1 if count <= 24 else 5
        axes.set_xticks([x + 0.5 for x in range(0, count, step)], [str(grid.layers[x]) for x in range(0, count, step)])
        axes.set_xlabel("layer")
        right = axes.secondary_yaxis("right")
        right.set_yticks([y + 0.5 for y in range(len(grid.names))], [_methods(grid, name) for name in grid.names], fontsize=8)
        _bare(axes)
        _bare(right)
        _legend(fig, list({m.word: m for m in map(algorithm_mark, grid.algorithms)}.values()), symbols=False)
    return fig


def _methods(grid: LayerGrid, name: str) -> str:
    counts = Counter(module.method for (row, _), module in grid.cells.items() if row == name)
    shown = counts.most_common(2)
    rest = f" +{len(counts) - 2} more" if len(counts) > 2 else ""
    return ", ".join(f"{shorten(method, 34)} ×{count}" for method, count in shown) + rest


def bars(values: Mapping[str, float], unit: str) -> Figure:
    """Horizontal bars with the number and its unit at the end of each."""
    names = list(values)
    with rc_context(STYLE):
        fig = _figure(7.5, 0.5 + 0.4 * len(names))
        axes = fig.subplots()
        drawn = axes.barh(names, list(values.values()), color=BLUE, height=0.65)
        axes.bar_label(drawn, [f" {value:,.0f} {unit}" for value in values.values()])
        axes.set_xlim(0, max(values.values()) * 1.15)
        axes.set_xticks([])
        axes.invert_yaxis()
        _bare(axes)
    return fig


Panels = Mapping[str, Mapping[tuple[str, str], str]]


def matrix(
    panels: Panels, rows: Sequence[str], columns: Sequence[str], marks: Mapping[str, Mark], *, frame: Sequence[str] = (), xlabel: str = ""
) -> Figure:
    """One panel a title, rows down, columns across; panels[title][row, column] names a mark. A missing cell stays empty.

    frame: columns that a frame is drawn around, from the first to the last of them.
    """
    across = 2 if len(panels) > 1 else 1
    down = -(-len(panels) // across)
    with rc_context(STYLE):
        fig = _figure(WIDTH, 1.2 + down * (0.95 + 0.25 * len(rows)))
        grid = fig.subplots(down, across, squeeze=False)
        for place, (title, cells) in enumerate(panels.items()):
            axes = grid.flat[place]
            for (row, column), state in cells.items():
                _cell(axes, columns.index(column), rows.index(row), marks[state], label=marks[state].symbol)
            axes.set_title(shorten(title, 60), fontsize=9, loc="left", fontweight="bold")
            axes.set_xlim(-0.05, len(columns) + 0.05)
            axes.set_ylim(len(rows) + 0.05, -0.05)
            axes.set_xticks([x + 0.5 for x in range(len(columns))], columns, rotation=90, fontsize=8)
            axes.set_yticks([y + 0.5 for y in range(len(rows))], [shorten(row, 40) for row in rows])
            lowest = place + across >= len(panels)
            axes.tick_params(labelbottom=lowest, labelleft=place % across == 0)
            axes.set_xlabel(xlabel if lowest else "")
            if frame:
                first, last = columns.index(frame[0]), columns.index(frame[-1])
                box = Rectangle((first, 0), last - first + 1, len(rows), fill=False, edgecolor="black", linewidth=1.6, zorder=3)
                axes.add_patch(box)
            _bare(axes)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        used = {state for cells in panels.values() for state in cells.values()}
        _legend(fig, [mark for state, mark in marks.items() if state in used])
    return fig


def matrix_rows(panels: Panels, columns: Sequence[str], marks: Mapping[str, Mark]) -> list[dict]:
    """The matrix as a table: one row for each panel, row and state, with the runs of columns that have it."""
    groups: dict[tuple, list[int]] = {}
    for title, cells in panels.items():
        for (row, column), state in cells.items():
            groups.setdefault((title, row, marks[state].word), []).append(columns.index(column))
    return [
        {"panel": title, "row": row, "state": word, "columns": ", ".join(_ends(columns, run) for run in runs(places))}
        for (title, row, word), places in groups.items()
    ]


def _ends(columns: Sequence[str], run: tuple[int, int]) -> str:
    first, last = run
    return columns[first] if first == last else f"{columns[first]} to {columns[last]}"


def timeline(lanes: Mapping[str, Mapping[str, str]], dates: Mapping[str, str], marks: Mapping[str, Mark]) -> Figure:
    """Lanes of states over release dates: lanes[lane][release] names a mark; dates[release] is an ISO date, oldest first.

    A state holds from its release to the next one; the newest is drawn three weeks long.
    """
    releases = list(dates)
    when = [date.fromisoformat(day) for day in dates.values()]
    days = [(day - when[0]).days for day in when]
    ends = [*days[1:], days[-1] + 21]
    with rc_context(STYLE):
        fig = _figure(WIDTH, 1.5 + 0.36 * len(lanes))
        axes = fig.subplots()
        for row, states in enumerate(lanes.values()):
            for release, start, end in zip(releases, days, ends, strict=True):
                if release in states:
                    mark = marks[states[release]]
                    _cell(axes, start, row, mark, width=end - start, label=mark.symbol)
        axes.set_xlim(0, ends[-1])
        axes.set_ylim(len(lanes) + 0.05, -0.05)
        axes.set_yticks([y + 0.5 for y in range(len(lanes))], [shorten(lane, 44) for lane in lanes])
        middles = [(start + end) / 2 for start, end in zip(days, ends, strict=True)]
        labels = [f"{release}\n{day:%d %b}" for release, day in zip(releases, when, strict=True)]
        axes.set_xticks(middles, labels, rotation=90, fontsize=7.5)
        axes.set_xlabel(f"SGLang release and its date in {when[0]:%Y}")
        _bare(axes)
        _legend(fig, [mark for state, mark in marks.items() if any(state in states.values() for states in lanes.values())])
    return fig
