"""Draw the curves of one or several runs: one colour per run, the same panels for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gspo_lightning.report.run import ACCURACY, Run, Series, number
from gspo_lightning.report.run import REWARD as HELD_OUT_REWARD
from gspo_lightning.report.style import (
    ALARM,
    GREY,
    INK,
    LEFT,
    MANY,
    RIGHT,
    Line,
    Panel,
    draw_series,
    dress,
    label_ends,
    lines_of,
    logarithmic,
    mark_alarms,
    poster,
    say_not_logged,
    say_what_is_missing,
    short,
    window,
)
from gspo_lightning.report.words import headline, result

REWARD = "reward/mean"
MARKS = 25
"""Largest number of evaluations that are marked; more are a line."""
WIDE = 30.0
"""Runs share a logarithmic axis if their medians differ by more than this factor: a linear one shows the lower as 0."""
PLACES = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3))
"""Row and column of each panel."""


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
    for axes, tag, drawn in ((upper, REWARD, bool(ends)), (lower, held_out, bool(accuracies))):
        if not drawn and (upper is not lower or not (ends or accuracies)):
            say_not_logged(axes)
        say_what_is_missing(axes, tag, lines)
    if upper is lower and (ends or accuracies):
        _explain_marks(upper, lines[0])


def _draw_accuracy(axes: Any, line: Line, series: Series, *, alone: bool) -> None:
    colour = ALARM if alone else line.colour
    axes.plot(series.steps, series.values, color=colour, lw=1.3, ls=(0, (1, 1.5)) if alone else line.dash, zorder=4)
    marked = slice(None) if len(series) <= MARKS else slice(None, None, len(series) - 1)  # else only the ends
    axes.plot(
        series.steps[marked], series.values[marked], "o", mfc="white", mec=colour, mew=1.8, ms=6.5, zorder=5,
        clip_on=False,
    )  # fmt: skip
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


PANELS = (
    Panel("clip/tokens", "Clipped tokens", "fraction of tokens"),
    Panel("ratio/log_sequence_std", "Spread of sequence ratios", "std of log s_i (nats per token)"),
    Panel("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Panel("kl/old_new_k3", "KL, old to new policy", "k3 (nats per token)"),
    Panel("policy/entropy", "Entropy", "nats per token"),
    Panel("response/length", "Response length", "tokens"),
    Panel("response/terminated", "Responses that end by themselves", "fraction of responses", whole=True),
    Panel("reward/dead_groups", "Dead groups (all rewards equal)", "fraction of groups", whole=True),
)
EXTRA = (
    Panel("moe/changed_choices", "Expert choices changed per update", "fraction of (token, layer)"),
    Panel("moe/changed_over_iteration", "Expert choices changed per iteration", "fraction of (token, layer)"),
    Panel("staleness/mean_age", "Age of rollouts", "updates"),
    Panel("ratio/effective_sample_size", "Effective sample size", "fraction of samples", whole=True),
    Panel("update/relative_norm", "Size of an update", "L2, relative to the weights"),
    Panel("response/repetition", "Repetition", "fraction of 4-grams"),
    Panel("noise/sampler_sequence_gap", "Sampler against trainer", "nats per token"),
)
"""Panels of a fourth row: the first four of these that a run logs."""


def draw_panel(axes: Any, panel: Panel, lines: Sequence[Line]) -> None:
    """Draw the curve of every run that logs the metric; name the others."""
    dress(axes, panel.title, panel.unit, lines)
    drawn = [(line, series) for line in lines if (series := line.run.get(panel.tag)) is not None]
    if not drawn:
        say_not_logged(axes)
        say_what_is_missing(axes, panel.tag, lines)
        return
    log = _spread_wide([series for _, series in drawn])
    ends = []
    for line, series in drawn:
        whole = len(line.run.scalars[panel.tag])
        bold = draw_series(axes, line, series, window(line.run, len(series)), log=log, whole=whole)
        ends.append((float(bold[-1]), line.colour))
    if log:
        logarithmic(axes)
        axes.set_ylabel(f"{panel.unit}, log (no 0)", color=GREY, fontsize=9)
    else:
        top = max(float(series.values.max()) for _, series in drawn)
        axes.set_ylim(0, 1.03 if panel.whole else 1.12 * top if top > 0 else 1)
    if panel.tag == "optim/gradient_norm":
        _mark_largest(axes, drawn)
    label_ends(axes, ends, gap=0.085)
    say_what_is_missing(axes, panel.tag, lines)


def _spread_wide(drawn: Sequence[Series]) -> bool:
    medians = [float(np.median(s.values[s.values > 0])) for s in drawn if (s.values > 0).any()]
    return len(medians) > 1 and max(medians) > WIDE * min(medians)


def _mark_largest(axes: Any, drawn: Sequence[tuple[Line, Series]]) -> None:
    """Mark the largest norm of each run with a dot, and the norm to which all runs clip with a line."""
    for line, series in drawn:
        at = int(series.values.argmax())
        largest = float(series.values[at])
        median = float(np.median(series.values))
        axes.plot(series.steps[at], largest, "o", color=line.colour, ms=4.5, zorder=4)
        if len(drawn) == 1 and median > 0:
            left = series.steps[at] <= sum(axes.get_xlim()) / 2
            axes.annotate(
                f"largest {short(largest)}\n= {largest / median:.1f} x median", (series.steps[at], largest),
                xytext=(7 if left else -7, 0), textcoords="offset points", ha="left" if left else "right", va="center",
                fontsize=8.5, color=INK,
            )  # fmt: skip
    limits = {number(line.run.setting("trainer", "gradient_clip_val")) for line, _ in drawn} - {None, 0.0}
    if len(limits) == 1 and (limit := limits.pop()) is not None and limit < axes.get_ylim()[1]:
        axes.axhline(limit, color=GREY, lw=0.9, ls=(0, (4, 3)), zorder=1)
        axes.set_ylabel(f"{axes.get_ylabel()} to {short(limit)} (dashed)", color=GREY, fontsize=9)


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the picture of a report; touches no global state of matplotlib."""
    extra = [panel for panel in EXTRA if any(panel.tag in run.scalars for run in runs)][:4]
    rows = 4 if extra else 3
    figure = poster(9.4 if rows == 3 else 12.2)
    lines = lines_of(runs)
    scale = 9.4 / float(figure.get_figheight())  # header and footer keep their height in inches
    top = 1 - scale * (0.125 + 0.024 * max(0, (len(runs) + 1) // 2 - 2))  # room for the legend, two runs to a row
    grid = figure.add_gridspec(
        rows, 4, left=LEFT, right=RIGHT, top=top, bottom=0.082 * scale, wspace=0.42, hspace=0.36 if rows == 3 else 0.42
    )
    draw_learning(figure, grid[0:2, 0:2], lines)
    places = (*PLACES, *((3, column) for column in range(len(extra))))
    for panel, (row, column) in zip((*PANELS, *extra), places, strict=True):
        axes = figure.add_subplot(grid[row, column])
        draw_panel(axes, panel, lines)
        if row == rows - 1:
            axes.set_xlabel("optimizer updates", color=GREY, fontsize=9)
    for axes in figure.axes:
        mark_alarms(axes, lines)
    _draw_header(figure, lines, scale)
    _draw_footer(figure, runs, scale)
    return figure


def _draw_header(figure: Figure, lines: Sequence[Line], scale: float) -> None:
    runs = [line.run for line in lines]
    if len(runs) == 1:
        run = runs[0]
        title = f"{run.objective}  ·  seed {run.seed}  ·  {run.model}  ·  {run.date}"
        words = headline(run)
        figure.text(LEFT, 1 - 0.062 * scale, words[:1].upper() + words[1:], fontsize=12, color=INK)
    else:
        objectives = dict.fromkeys(run.objective for run in runs)
        models = dict.fromkeys(run.model for run in runs)
        seeds = dict.fromkeys(run.seed for run in runs)
        dates = sorted({run.date for run in runs})
        title = (
            f"{' / '.join(objectives)}  ·  {len(runs)} runs  ·  seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}  ·  "
            f"{', '.join(models)}  ·  {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
        )
        handles = [
            Line2D([], [], color=line.colour, ls=line.dash, lw=2.6, label=f"{line.run.label}: {result(line.run)}")
            for line in lines
        ]
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(LEFT - 0.004, 1 - 0.038 * scale), ncols=2, frameon=False,
            fontsize=10, labelcolor=INK, borderaxespad=0, columnspacing=3,
        )  # fmt: skip
    figure.text(LEFT, 1 - 0.032 * scale, title, fontsize=15, fontweight="bold", color=INK)


def _draw_footer(figure: Figure, runs: Sequence[Run], scale: float) -> None:
    widths = sorted({window(run, run.updates) for run in runs if run.updates})
    span = " to ".join(str(w) for w in dict.fromkeys(widths[:1] + widths[-1:]))
    text = f"Light: every update. Bold: running mean over {span} updates"
    text += "; its last value is at the right edge. " if len(runs) <= MANY else ". "
    dotted = "Dotted: a signature of collapse begins. " if any(run.alarms for run in runs) else ""
    figure.text(
        LEFT, 0.018 * scale, f"{text if span else ''}{dotted}Definitions: gspo list metrics", fontsize=9, color=GREY
    )
    unfinished = [run.label for run in runs if not run.finished]
    if unfinished:
        names = ": " + "; ".join(unfinished) if len(runs) > 1 else ""
        figure.text(RIGHT, 0.018 * scale, f"not finished, or stopped{names}", fontsize=9, color=ALARM, ha="right")
