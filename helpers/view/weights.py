"""Figures of numbers and their storage: heat maps, histograms of codes, a block beside what became of it."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.view.figures import STYLE, WIDTH
from helpers.view.palette import BLACK, BLUE, ORANGE

# Lightness rises evenly along it, so that it reads the same in grey and with any colour-vision deficiency.
SCALE = "cividis"
MOST_LABELS = 24


def heat_map(
    values: np.ndarray, *, rows: Sequence[object], columns: Sequence[object], xlabel: str, ylabel: str, unit: str, annotate: str = ""
) -> Figure:
    """values [rows, columns] as colours with a bar that says the unit. annotate: a format for the number in each cell, "" for none."""
    with rc_context(STYLE):
        fig = Figure(figsize=(WIDTH, min(1.6 + 0.28 * len(rows), 6.5)), layout="constrained")
        axes = fig.subplots()
        picture = axes.imshow(values, aspect="auto", cmap=SCALE, interpolation="nearest")
        _ticks(axes.set_xticks, columns)
        _ticks(axes.set_yticks, rows)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        fig.colorbar(picture, ax=axes, label=unit)
        if annotate:
            low, high = np.nanmin(values), np.nanmax(values)
            for (row, column), value in np.ndenumerate(values):
                dark = value < (low + high) / 2
                axes.text(column, row, format(value, annotate), ha="center", va="center", fontsize=8, color="white" if dark else BLACK)
    return fig


def _ticks(set_ticks, labels: Sequence[object]) -> None:
    step = -(-len(labels) // MOST_LABELS)
    set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]])


def compared(names: Sequence[str], series: Mapping[str, Sequence[float]], *, xlabel: str, ylabel: str) -> Figure:
    """Two series over the same names: the first as bars, the second as marks on them."""
    (first, bars), (second, marks) = series.items()
    with rc_context(STYLE):
        fig = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = fig.subplots()
        axes.bar(names, bars, color=BLUE, width=0.7, label=first)
        axes.plot(names, marks, linestyle="none", marker="D", color=ORANGE, markeredgecolor=BLACK, label=second)
        axes.axhline(0, color=BLACK, linewidth=0.8)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.spines[["top", "right"]].set_visible(False)
        fig.legend(loc="outside upper center", ncols=2, frameon=False)
    return fig


def halves(columns: Mapping[str, np.ndarray], rows: int, names: tuple[str, str], ylabel: str) -> Figure:
    """Strips of rows beside each other, one a column: columns[title] holds which row lies where, the first half's 0 to rows - 1 and the
    second's from rows on. Colour says which half, lightness how far down it a row comes from."""
    with rc_context(STYLE):
        fig = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        axes = fig.subplots(1, len(columns), sharey=True)
        for strip, (title, order) in zip(axes, columns.items(), strict=True):
            far = 0.25 + 0.75 * (order % rows) / (rows - 1)
            colours = np.where((order < rows)[:, None], np.array(to_rgb(BLUE)), np.array(to_rgb(ORANGE)))
            picture = 1 - far[:, None] * (1 - colours)
            strip.imshow(picture[:, None, :], aspect="auto", interpolation="nearest", extent=(0, 1, len(order), 0))
            strip.set_title(title, fontsize=8.5)
            strip.set_xticks([])
        axes[0].set_ylabel(ylabel)
        axes[0].set_yticks(range(0, 2 * rows + 1, 32))
        handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in (BLUE, ORANGE)]
        labels = [f"{name}, row 0 light to row {rows - 1} dark" for name in names]
        fig.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return fig
