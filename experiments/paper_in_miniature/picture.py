"""The curves of every cell: a row for each regime, the same colours everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from experiments.paper_in_miniature.grid import Grid
from experiments.paper_in_miniature.numbers import Regime, Results, regimes, words
from gspo_lightning.report.style import COLOURS, GREY, INK, quiet, say_not_logged

__all__ = ["draw"]

SAME_AS = {"GSPO-token": "GSPO", "GSPO, bf16 old": "GSPO", "GRPO, bf16 old": "GRPO"}
"""Methods that share a colour with another one, with dashes of their own."""
DASHES = {"GSPO-token": (0, (1, 1.6)), "GSPO, bf16 old": (0, (5, 2)), "GRPO, bf16 old": (0, (5, 2))}
TITLES = (
    ("Reward against compute", "mean reward", "thousand tokens trained on"),
    ("Clipped tokens", "fraction, log (0 not shown)", "iteration"),
    ("Gradient norm, largest of an iteration", "L2, before clipping, log", "iteration"),
)


def draw(grid: Grid, results: Results) -> Figure:
    """Only regimes that have a result; touches no global state of matplotlib."""
    shown = [r for r in regimes(grid) if any(c.regime == r and c.name in results for c in grid.cells())]
    rows = max(len(shown), 1)
    height = 3.2 * rows + 1.2
    figure = Figure(figsize=(15, height), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    grid_spec = figure.add_gridspec(
        rows, 3, left=0.05, right=0.985, top=1 - 1.2 / height, bottom=0.55 / height, wspace=0.2, hspace=0.72
    )
    colours = _colours(grid)
    for row, regime in enumerate(shown):
        panels = [figure.add_subplot(grid_spec[row, column]) for column in range(3)]
        top = panels[0].get_position().y1
        figure.text(0.05, top + 0.36 / height, words(regime), fontsize=12, fontweight="bold", color=INK)
        _draw_row(panels, _by_method(grid, results, regime), colours)
    methods = dict.fromkeys(cell.method for cell in grid.cells() if cell.name in results)
    handles = [Line2D([], [], color=colours[m], ls=DASHES.get(m, "-"), lw=2.4, label=m) for m in methods]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.045, 1 - 0.08 / height), ncols=8, frameon=False,
                  fontsize=10.5, labelcolor=INK)  # fmt: skip
    return figure


def _colours(grid: Grid) -> dict[str, str]:
    methods = list(dict.fromkeys(cell.method for cell in grid.cells()))
    own = [m for m in dict.fromkeys([*grid.declared["methods"], *methods]) if m not in SAME_AS]
    return {m: COLOURS[own.index(SAME_AS.get(m, m)) % len(COLOURS)] for m in methods}


def _by_method(grid: Grid, results: Results, regime: Regime) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in grid.cells():
        if cell.regime == regime and cell.name in results:
            found.setdefault(cell.method, []).append(results[cell.name])
    return found


def _draw_row(
    panels: Sequence[Any], by_method: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, str]
) -> None:
    for axes, (title, unit, below), curve in zip(panels, TITLES, (_reward, _clipped, _norms), strict=True):
        quiet(axes, title, unit)
        axes.set_title(title, loc="left", fontsize=10, color=GREY, pad=5)
        axes.set_xlabel(below, color=GREY, fontsize=9)
        for method, own in by_method.items():
            curves = [curve(result) for result in own]
            common = min(len(x) for x, _ in curves)
            if common:
                curves.append((*(np.mean([c[i][:common] for c in curves], axis=0) for i in (0, 1)),))
            for number, (x, y) in enumerate(curves):
                mean = common and number == len(curves) - 1
                look = {"lw": 2.2, "ls": DASHES.get(method, "-"), "zorder": 3} if mean else {"lw": 0.7, "alpha": 0.3}
                # a mean counts the zeros that a log axis cannot show
                axes.plot(x, y if curve is _reward else np.where(y > 0, y, np.nan), color=colours[method], **look)
        if not axes.lines:
            say_not_logged(axes)
        elif curve is _reward:
            axes.set_ylim(0, 1.03)
        else:
            axes.set_yscale("log")
            axes.tick_params(which="both", length=0)


def _reward(result: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.cumsum(result.get("tokens", [])) / 1e3, np.asarray(result["reward"])[: len(result.get("tokens", []))]


def _per_iteration(result: Mapping[str, Any], word: str) -> list[list[float]]:
    """Values of the updates of each iteration."""
    found: list[list[float]] = []
    updates = result["updates"]
    for value, index in zip(updates.get(word, []), updates.get("index", []), strict=False):
        if index == 0:
            found.append([])
        found[-1].append(value)
    return found


def _clipped(result: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the updates that are not the first of their iteration."""
    means = np.array([np.mean(values[1:]) for values in _per_iteration(result, "clipped") if len(values) > 1])
    return np.arange(1.0, len(means) + 1), means


def _norms(result: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    largest = np.array([max(values) for values in _per_iteration(result, "gradient_norm")])
    return np.arange(1.0, len(largest) + 1), largest
