"""Draw objectives on the same rollouts: their metrics along the mini-batches, and the cosines of their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from gspo_lightning.report.side_by_side.data import MEASURES, Measure, SideBySideData
from gspo_lightning.report.style import GREY, INK, MANY, label_ends, quiet, say_not_logged, style

__all__ = ["draw"]

LIGHT = 0.6
"""Cosines below this value are written in white on dark."""


def draw(found: SideBySideData) -> Figure:
    """Draw the picture; touches no global state of matplotlib."""
    styles = {name: style(i) for i, name in enumerate(found.names)}
    figure = Figure(figsize=(15, 8.2), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 4, left=0.045, right=0.965, top=0.83, bottom=0.09, wspace=0.52, hspace=0.42)
    for column, measure in enumerate(MEASURES):
        values = {name: found.values(name, measure.tag) for name in found.names}
        _draw_lines(figure.add_subplot(grid[0, column]), measure, values, styles)
    to_first = {name: found.cosines()[:, :, 0, i] for i, name in enumerate(found.names)}
    title = f"Direction beside {found.names[0]}'s"
    panel = Measure("", title if len(title) < 32 else "Direction beside the first", "cosine between gradients")
    _draw_lines(figure.add_subplot(grid[1, 0]), panel, to_first, styles)
    _draw_matrix(figure.add_subplot(grid[1, 1]), "Cosines, mini-batch 1", found.names, found.cosines()[:, 0])
    last = found.mini_batches
    if last > 1:
        _draw_matrix(figure.add_subplot(grid[1, 2]), f"Cosines, mini-batch {last}", found.names, found.cosines()[:, -1])
    _draw_key(figure.add_subplot(grid[1, 3]), found, styles)
    figure.text(0.045, 0.95, " / ".join(found.names), fontsize=15, fontweight="bold", color=INK)
    text = (
        f"the same recorded rollouts at the same weights  ·  {len(found.iterations)} iterations of {last} mini-batches"
        f"  ·  {found.names[0]} moves the weights"
    )
    figure.text(0.045, 0.912, text, fontsize=11, color=INK)
    return figure


def _draw_lines(
    axes: Any, panel: Measure, values: Mapping[str, NDArray[np.float64]], styles: Mapping[str, tuple[str, str]]
) -> None:
    """Draw values along the mini-batches: every iteration thin, their mean bold."""
    quiet(axes, panel.name, panel.unit)
    axes.set_xlabel("mini-batch of the iteration (1: ratios are 1)", color=GREY, fontsize=9)
    ends = []
    for number, (name, raw) in enumerate(values.items()):
        shown = np.where(raw > 0, raw, np.nan) if panel.log else raw
        if not np.isfinite(shown).any():
            continue
        colour, dash = styles[name]
        x = np.arange(1, raw.shape[1] + 1)
        axes.plot(x, shown.T, color=colour, lw=0.9, alpha=0.4, zorder=2)
        mean = np.array([_mean(column) for column in raw.T])  # zeros count, though a log axis hides them
        mean = np.where(mean > 0, mean, np.nan) if panel.log else mean
        axes.plot(x, mean, color=colour, lw=2.4, ls=dash, marker="os^Dv"[number % 5], ms=5, zorder=3)
        if np.isfinite(mean[-1]):
            ends.append((float(mean[-1]), colour))
    if not ends:
        say_not_logged(axes)
        return
    count = next(iter(values.values())).shape[1]
    axes.set_xlim(0.8, count + 0.2)
    axes.set_xticks(range(1, count + 1, max(1, count // 8)))
    if panel.log:
        axes.set_yscale("log")
        axes.tick_params(which="both", length=0)
    elif panel.unit.startswith("fraction"):
        axes.set_ylim(0, 1.02)
    label_ends(axes, ends, gap=0.085)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def _draw_matrix(axes: Any, title: str, names: list[str], cosines: NDArray[np.float64]) -> None:
    """Draw the mean over iterations [I, K, K] as numbers on grey, 0 (dark) to 1 (white); red below 0."""
    values = np.array([[_mean(cosines[:, i, j]) for j in range(len(names))] for i in range(len(names))])
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=7)
    axes.imshow(np.clip(values, 0, 1), cmap="gray", vmin=-0.15, vmax=1.0)
    small = 9 if len(names) < 6 else 6.5
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            text = f"{value:.2f}" if np.isfinite(value) else "no\ngradient"
            colour = "#ff6b5e" if value < 0 else "white" if value < LIGHT else INK
            axes.text(j, i, text, ha="center", va="center", fontsize=small, color=colour)
    places = range(len(names))
    axes.set_xticks(places, [_short(n) for n in names], rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, [_short(n) for n in names])
    axes.tick_params(colors=GREY, labelsize=8.5, length=0)
    for side in axes.spines.values():
        side.set_color("#d9d9d9")


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _draw_key(axes: Any, found: SideBySideData, styles: Mapping[str, tuple[str, str]]) -> None:
    axes.axis("off")
    handles = [
        Line2D([], [], color=styles[n][0], ls=styles[n][1], lw=2.6, marker="os^Dv"[i % 5], label=n)
        for i, n in enumerate(found.names)
    ]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=11, labelcolor=INK, borderaxespad=0)
    lines = ["Thin: one iteration. Bold: their mean" + ("; its" if len(found.names) <= MANY else ".")]
    lines += ["last value is at the right edge."] if len(found.names) <= MANY else []
    text = "\n".join([*lines, "Losses are on different scales."])
    axes.text(0, 0.02, text, transform=axes.transAxes, fontsize=9, color=GREY, va="bottom")
