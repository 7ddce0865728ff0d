"""Draw the large panel of the picture: reward and accuracy over the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gspo_lightning.report.held_out import ACCURACY
from gspo_lightning.report.held_out import REWARD as HELD_OUT_REWARD
from gspo_lightning.report.run import Series
from gspo_lightning.report.style import (
    ALARM,
    GREY,
    INK,
    Line,
    draw_series,
    dress,
    label_ends,
    say_not_logged,
    say_what_is_missing,
    window,
)

__all__ = ["MARKS", "REWARD", "draw_learning"]

REWARD = "reward/mean"
MARKS = 25
"""Largest number of evaluations that are marked; more are a line."""


def draw_learning(figure: Figure, place: Any, lines: Sequence[Line]) -> None:
    """Draw reward and accuracy in one panel if there is one run and both are fractions, else one above the other."""
    rewards = [s for line in lines if (s := line.run.get(REWARD)) is not None]
    fractions = all(s.values.min() >= 0 and s.values.max() <= 1 for s in rewards)
    correct = all(line.run.shown_by == "accuracy" for line in lines)
    held_out = ACCURACY if correct else HELD_OUT_REWARD
    if fractions and correct and len(lines) == 1:
        upper = lower = figure.add_subplot(place)
        dress(upper, "Training reward and held-out accuracy", "mean reward, fraction correct", lines)
    else:
        upper, lower = (figure.add_subplot(part) for part in place.subgridspec(2, 1, hspace=0.36))
        dress(upper, "Training reward", "mean reward", lines)
        words = ("Held-out accuracy", "fraction correct") if correct else ("Held-out mean reward", "mean reward")
        dress(lower, *words, lines)
    if correct:
        lower.set_ylim(0, 1.06)
    lower.set_xlabel("optimizer updates", color=GREY, fontsize=9)
    ends = []
    for line in lines:
        if (series := line.run.get(REWARD)) is not None:
            whole = len(line.run.scalars[REWARD])
            bold = draw_series(upper, line, series, window(line.run, len(series)), whole=whole)
            ends.append((float(bold[-1]), line.colour))
    if fractions:
        upper.set_ylim(0, 1.06)
    label_ends(upper, ends, gap=0.085)
    accuracies = [(line, s) for line in lines if (s := line.run.get(held_out)) is not None]
    for line, series in accuracies:
        _draw_accuracy(lower, line, series, alone=len(lines) == 1)
    if len(lines) > 1:
        label_ends(lower, [(float(s.values[-1]), line.colour) for line, s in accuracies], gap=0.085)
    for axes, tag, found in ((upper, REWARD, bool(ends)), (lower, held_out, bool(accuracies))):
        if not found and (upper is not lower or not (ends or accuracies)):
            say_not_logged(axes)
        say_what_is_missing(axes, tag, lines)
    if upper is lower and (ends or accuracies):
        _explain_marks(upper, lines[0])


def _draw_accuracy(axes: Any, line: Line, series: Series, *, alone: bool) -> None:
    colour = ALARM if alone else line.colour
    axes.plot(series.steps, series.values, color=colour, lw=1.3, ls=(0, (1, 1.5)) if alone else line.dash, zorder=4)
    shown = slice(None) if len(series) <= MARKS else slice(None, None, len(series) - 1)  # else only the ends
    marked = series.steps[shown], series.values[shown]
    axes.plot(*marked, "o", mfc="white", mec=colour, mew=1.8, ms=6.5, zorder=5, clip_on=False)
    if not alone:
        return
    low = 0 <= series.values[-1] < 0.12  # then there is no room below the last mark
    for at, word, offset in ((0, "before", (11, 0)), (-1, "after", (-2, 17 if low else -17))):
        if at == 0 or len(series) > 1:
            axes.annotate(
                f"{word} {series.values[at]:.2f}", (series.steps[at], series.values[at]), xytext=offset,
                textcoords="offset points", ha="left" if at == 0 else "right", va="center", color=colour, fontsize=12,
                fontweight="bold", zorder=4.5, bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1},
            )  # fmt: skip


def _explain_marks(axes: Any, line: Line) -> None:
    reward, accuracy = (
        name + ("" if line.run.get(tag) else " (not logged)")
        for name, tag in (("training reward", REWARD), ("held-out accuracy", ACCURACY))
    )
    handles = [
        Line2D([], [], color=line.colour, lw=2.2, label=reward),
        Line2D([], [], color=ALARM, lw=1.3, ls=":", marker="o", mfc="white", mew=1.8, label=accuracy),
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=10, labelcolor=INK, edgecolor="none", framealpha=0.8)
