"""Draw the curves of one or several runs: one colour per run, the same panels for all."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gspo_lightning.report.learning import draw_learning
from gspo_lightning.report.panels import EXTRA, PANELS, PLACES, draw_panel
from gspo_lightning.report.run import Run
from gspo_lightning.report.style import (
    ALARM,
    GREY,
    INK,
    LEFT,
    MANY,
    RIGHT,
    Line,
    lines_of,
    mark_alarms,
    window,
)
from gspo_lightning.report.words import headline

__all__ = ["draw"]


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the picture of a report; touches no global state of matplotlib."""
    extra = [panel for panel in EXTRA if any(panel.tag in run.scalars for run in runs)][:4]
    rows = 4 if extra else 3
    figure = Figure(figsize=(15, 9.4 if rows == 3 else 12.2), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
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
        objectives, models = dict.fromkeys(r.objective for r in runs), dict.fromkeys(r.model for r in runs)
        seeds, dates = dict.fromkeys(r.seed for r in runs), sorted({r.date for r in runs})
        title = (
            f"{' / '.join(objectives)}  ·  {len(runs)} runs  ·  seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}  ·  "
            f"{', '.join(models)}  ·  {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
        )
        handles = [
            Line2D([], [], color=line.colour, ls=line.dash, lw=2.6, label=f"{line.run.label}: {headline(line.run)}")
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
        LEFT, 0.018 * scale, f"{text if span else ''}{dotted}Definitions: docs/metrics.md", fontsize=9, color=GREY
    )
    unfinished = [run.label for run in runs if not run.finished]
    if unfinished:
        names = ": " + "; ".join(unfinished) if len(runs) > 1 else ""
        figure.text(RIGHT, 0.018 * scale, f"not finished, or stopped{names}", fontsize=9, color=ALARM, ha="right")
