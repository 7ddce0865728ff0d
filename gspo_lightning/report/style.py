"""Plot kit of all figures: canvas, colours, axes, labels at the right edge, notes, keys, and files written whole."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gspo_lightning.core.escape import visible
from gspo_lightning.core.temp_files import temp_path
from gspo_lightning.report.run import Run, Series

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, safe for colour blindness; without its yellow, which vanishes on white."""
DASHES = ("-", "--", ":", "-.")
"""From the eighth run on, colours repeat with another dash; see :func:`lines_of`."""
INK = "#222222"
GREY = "#6b6b6b"
FAINT = "#d9d9d9"
ALARM = "#D55E00"
MANY = 4
"""Largest number of runs whose values are shown at the right edge: more would be a list rather than labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of one metric. ``log``: a logarithmic axis. ``whole``: the axis shows all of a fraction, 0 to 1."""

    tag: str
    title: str
    unit: str
    log: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A run with the colour and dash that it has in every panel."""

    run: Run
    colour: str
    dash: str


def canvas(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure of this size in inches, which touches no global state of matplotlib."""
    figure = Figure(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def poster(height: float = 8.2) -> Figure:
    """Return an empty figure for many panels: wide, and white wherever it is pasted."""
    return canvas(15, height, dpi=120, facecolor="white")


def grid_of(figure: Figure, wspace: float, hspace: float) -> GridSpec:
    """Return two rows of four panels, below a heading."""
    return figure.add_gridspec(2, 4, left=0.045, right=0.965, top=0.83, bottom=0.09, wspace=wspace, hspace=hspace)


def heading(figure: Figure, names: Sequence[str], text: str) -> None:
    """Write the compared names, and a line of text below them, above the panels."""
    figure.text(0.045, 0.95, " / ".join(names), fontsize=15, fontweight="bold", color=INK)
    figure.text(0.045, 0.912, text, fontsize=11, color=INK)


def draw_key(axes: Any, styles: Mapping[str, tuple[str, str]], text: str, marks: str = "") -> None:
    """Turn a panel into the key of the others.

    Args:
        axes: the panel.
        styles: name -> colour and dash.
        text: explanation below the names.
        marks: markers of the lines, in turn; empty for none.
    """
    axes.axis("off")
    handles = [
        Line2D([], [], color=colour, ls=dash, lw=2.6, marker=marks[i % len(marks)] if marks else None, label=name)
        for i, (name, (colour, dash)) in enumerate(styles.items())
    ]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=11, labelcolor=INK, borderaxespad=0)
    axes.text(0, 0.02, text, transform=axes.transAxes, fontsize=9, color=GREY, va="bottom")


def style(number: int) -> tuple[str, str]:
    """Return colour and dash of the ``number``-th line."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def lines_of(runs: Sequence[Run]) -> list[Line]:
    """Return one colour per run, and another dash when the colours are used up.

    With many runs, those that differ only in their seed share a colour and differ in their dash.
    """
    kinds = [run.kind if len(runs) > MANY and run.kind else str(i) for i, run in enumerate(runs)]
    order = list(dict.fromkeys(kinds))
    lines = []
    for i, (run, kind) in enumerate(zip(runs, kinds, strict=True)):
        number = order.index(kind)
        again = kinds[:i].count(kind)
        dash = DASHES[(number // len(COLOURS) + again) % len(DASHES)]
        lines.append(Line(run, COLOURS[number % len(COLOURS)], dash))
    return lines


def dress(axes: Any, title: str, unit: str, lines: Sequence[Line]) -> None:
    """Set title, unit and quiet axes, with the same x range in all panels."""
    quiet(axes, title, unit)
    axes.set_xlim(0, max([line.run.updates for line in lines] + [1]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 2.5, 5, 10]))


def quiet(axes: Any, title: str, unit: str) -> None:
    """Set title, unit, and unobtrusive axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=7)
    axes.set_ylabel(unit, color=GREY, fontsize=9)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=GREY, labelsize=8.5, length=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def logarithmic(axes: Any) -> None:
    """Make the y axis logarithmic, without ticks."""
    axes.set_yscale("log")
    axes.tick_params(which="both", length=0)


def bare(axes: Any, *sides: str) -> None:
    """Draw vertical grid lines behind the data, and hide these sides of the frame."""
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in sides:
        axes.spines[side].set_visible(False)


def draw_series(
    axes: Any, line: Line, series: Series, width: int, *, log: bool = False, whole: int = 0
) -> NDArray[np.float64]:
    """Draw the logged values lightly and their running mean over ``width`` values in bold; return the mean.

    A ``log`` axis has no 0. A cross ends a series of fewer than ``whole`` values: the others are not finite.
    """
    bold = smooth(series.values, width)
    raw, mean = (np.where(v > 0, v, np.nan) if log else v for v in (series.values, bold))
    axes.plot(series.steps, raw, color=line.colour, lw=0.8, alpha=0.35 if len(series) < 500 else 0.2, zorder=2)
    axes.plot(series.steps, mean, color=line.colour, lw=2.2, ls=line.dash, zorder=3, solid_capstyle="round")
    if len(series) == 1:
        axes.plot(series.steps, bold, "o", color=line.colour, ms=5, zorder=3)
    if len(series) < whole:  # later values are not finite
        axes.plot(series.steps[-1:], mean[-1:], "X", color=line.colour, mec="white", ms=9, zorder=6)
    return bold


def smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Compute the running mean [K] of ``values`` [K] over ``width`` neighbours.

    At the ends it is over the first and last ``width`` values.

    >>> smooth(np.array([0.0, 2.0, 0.0, 2.0]), 2).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    means = np.convolve(values, np.full(width, 1 / width), mode="valid")
    starts = np.clip(np.arange(len(values)) - width // 2, 0, len(means) - 1)
    return np.asarray(means[starts])


def label_ends(axes: Any, ends: Sequence[tuple[float, str]], gap: float) -> None:
    """Write the last value at the right end of each line, in its colour, moved apart by ``gap`` if they overlap.

    Args:
        axes: with its final limits.
        ends: (value, colour) per line.
        gap: least distance, as a fraction of the panel's height.
    """
    if len(ends) > MANY:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted((float(to_axes.transform((0, max(y, axes.get_ylim()[0])))[1]), y, c) for y, c in ends)
    placed: list[float] = []
    for height, _, _ in ordered:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    ceiling = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    for height, (_, value, colour) in zip(placed, ordered, strict=True):
        axes.text(
            1.015, height, short(value), transform=axes.transAxes, color=colour, fontsize=9, fontweight="bold",
            va="center",
        )  # fmt: skip


def short(value: float) -> str:
    """Format with two or three significant digits, for a label in a picture.

    >>> [short(v) for v in (0.984, 0.0318, 20.93, 0.00031, 0.0, 8640.0)]
    ['0.984', '0.032', '20.9', '3.1e-4', '0', '8640']
    """
    if value != 0 and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def mark_alarms(axes: Any, lines: Sequence[Line]) -> None:
    """Draw a dotted line at the start of each collapse signature; name it on the learning panels, which have room."""
    for line in lines:
        starts: dict[int, list[str]] = {}
        for alarm in line.run.alarms:
            starts.setdefault(alarm["since"], []).append(str(alarm.get("signature", "?")).replace("_", " "))
        for since, names in starts.items():
            colour = ALARM if len(lines) == 1 else line.colour
            axes.axvline(since, color=colour, lw=1.1, ls=(0, (1, 2)), zorder=1.5)
            if axes.get_title(loc="left").startswith("Training reward"):
                axes.text(
                    since, 0.98, " " + ", ".join(names), transform=axes.get_xaxis_transform(), ha="left", va="top",
                    fontsize=8.5, color=colour, zorder=7, bbox={"fc": "white", "ec": "none", "alpha": 0.75, "pad": 1},
                )  # fmt: skip


def say_not_logged(axes: Any) -> None:
    """Write "not logged" on an empty panel."""
    axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])


def say_what_is_missing(axes: Any, tag: str, lines: Sequence[Line]) -> None:
    """Note on the panel which runs lack this scalar, and which have values that are not finite."""
    notes: list[str] = []
    colour = GREY
    absent = [line.run.label for line in lines if tag not in line.run.scalars]
    if absent and len(absent) < len(lines):
        notes.append("not logged: " + "; ".join(absent))
    for line in lines:
        series = line.run.scalars.get(tag)
        if series is not None and not np.isfinite(series.values).all():
            first = int(series.steps[~np.isfinite(series.values)][0])
            notes.append(f"{line.run.label + ': ' if len(lines) > 1 else ''}not finite from update {first} on")
            colour = ALARM
    note(axes, notes, colour)


def note(axes: Any, notes: Sequence[str], colour: str = GREY) -> None:
    """Write lines at the top right of a panel, above its curves."""
    if notes and axes.get_yscale() == "linear":  # room above the curves
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + (high - low) * (0.05 + 0.075 * len(notes)))
    if notes:
        axes.text(
            0.985, 0.985, "\n".join(notes), transform=axes.transAxes, ha="right", va="top", fontsize=8, color=colour,
            zorder=7, bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip


LEFT = 0.045
RIGHT = 0.957


def window(run: Run, length: int) -> int:
    """Return the updates in a running mean: about 1/20 of all, in whole iterations to hide the saw-tooth within one."""
    iteration = run.get("data/iteration")
    period = 1
    if iteration is not None:
        period = max(1, int(np.median(np.unique(iteration.values, return_counts=True)[1])))
    return max(1, min(period * max(1, round(length / (20 * period))), length))


def save(figure: Figure, file: Path) -> None:
    """Write a PNG beside the file, then swap it in, so that a viewer of the old picture always finds a whole one."""
    _show_plainly(figure)
    unfinished = temp_path(file)
    figure.savefig(unfinished, format="png")
    os.replace(unfinished, file)


def _show_plainly(figure: Figure) -> None:
    """Turn off formulas in texts: two dollars in a name would end the run. Ticks of numbers stay unchanged."""
    axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in axes:
        named = isinstance(axis.get_major_formatter(), FuncFormatter)  # set by set_ticks for names
        if not (named and isinstance(axis.get_major_locator(), FixedLocator)):
            continue
        axis.set_ticklabels([visible(label.get_text()) for label in axis.get_ticklabels()], parse_math=False)
    ticks = {label for axis in axes for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in ticks:
            text.set_text(visible(text.get_text()))
            text.set_parse_math(False)
