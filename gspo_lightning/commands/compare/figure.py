"""Figure of a comparison: one colour per variant, a thin line per seed, a bold line for their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.style import (
    GREY,
    INK,
    MANY,
    dress,
    label_ends,
    lines_of,
    note,
    quiet,
    say_not_logged,
    smooth,
    style,
    window,
)

__all__ = ["draw"]

Runs = Mapping[str, Mapping[int, Run]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; ``log`` draws positive values on a logarithmic axis."""

    tag: str
    title: str
    unit: str
    log: bool = False


PANELS = (
    Panel("reward/mean", "Training reward", "mean reward"),
    Panel("clip/tokens", "Clipped tokens", "fraction of tokens (0 not shown)", log=True),
    Panel("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Panel("ratio/log_sequence_std", "Spread of sequence ratios", "std of log $s_i$ (nats per token)"),
    Panel("policy/entropy", "Entropy", "nats per token"),
    Panel("response/length", "Response length", "tokens"),
)
ROUTES = Panel("moe/changed_choices", "Routed choices unlike the old policy's", "fraction of (token, layer)")


def draw(runs: Runs) -> Figure:
    """Draw the figure, without touching matplotlib's global state."""
    panels = (
        [*PANELS[:5], ROUTES] if any(ROUTES.tag in r.scalars for v in runs.values() for r in v.values()) else PANELS
    )
    styles = {name: style(number) for number, name in enumerate(runs)}
    figure = Figure(figsize=(15, 8.2), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 4, left=0.045, right=0.965, top=0.83, bottom=0.09, wspace=0.42, hspace=0.36)
    _draw_accuracy(figure.add_subplot(grid[0, 0]), runs, styles)
    places = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    for panel, (row, column) in zip(panels, places, strict=True):
        _draw_panel(figure.add_subplot(grid[row, column]), panel, runs, styles)
    _draw_key(figure.add_subplot(grid[1, 3]), runs, styles)
    seeds = list(next(iter(runs.values())))
    first = next(iter(_firsts(runs)))
    figure.text(0.045, 0.95, " / ".join(runs), fontsize=15, fontweight="bold", color=INK)
    text = f"{first.model}  ·  {len(seeds)} seeds ({', '.join(map(str, seeds))})  ·  the same prompts and cold starts"
    figure.text(0.045, 0.912, text, fontsize=11, color=INK)
    return figure


def _firsts(runs: Runs) -> list[Run]:
    return [next(iter(by_seed.values())) for by_seed in runs.values()]


def _draw_panel(axes: Any, panel: Panel, runs: Runs, styles: Mapping[str, tuple[str, str]]) -> None:
    dress(axes, panel.title, panel.unit, lines_of([r for v in runs.values() for r in v.values()]))
    axes.set_xlabel("optimizer updates", color=GREY, fontsize=9)
    ends = []
    for name, by_seed in runs.items():
        found = [(run, s) for run in by_seed.values() if (s := run.get(panel.tag)) is not None]
        if not found:
            continue
        colour, dash = styles[name]
        smoothed = [_smoothed(run, series, panel.log) for run, series in found]
        for series, values in zip((s for _, s in found), smoothed, strict=True):
            axes.plot(series.steps, values, color=colour, lw=0.9, alpha=0.45, zorder=2)
        common = min(len(values) for values in smoothed)
        mean = np.mean([values[:common] for values in smoothed], axis=0)
        axes.plot(found[0][1].steps[:common], mean, color=colour, lw=2.4, ls=dash, zorder=3)
        if np.isfinite(mean[-1]):
            ends.append((float(mean[-1]), colour))
    absent = [name for name, by_seed in runs.items() if all(run.get(panel.tag) is None for run in by_seed.values())]
    if len(absent) == len(runs):
        say_not_logged(axes)
        return
    if panel.log:
        axes.set_yscale("log")
        axes.tick_params(which="both", length=0)
    else:
        axes.set_ylim(bottom=0)
    note(axes, [f"not logged: {', '.join(absent)}"] if absent else [])
    label_ends(axes, ends, gap=0.085)


def _smoothed(run: Run, series: Series, log: bool) -> Any:
    values = smooth(series.values, window(run, len(series)))
    return np.where(values > 0, values, np.nan) if log else values


def _draw_accuracy(axes: Any, runs: Runs, styles: Mapping[str, tuple[str, str]]) -> None:
    """Draw held-out accuracy: a dot per seed before (hollow) and after training (filled), and the mean as a bar."""
    quiet(axes, "Held-out accuracy", "fraction correct")
    for place, (name, by_seed) in enumerate(runs.items()):
        colour = styles[name][0]
        pairs = [run.accuracy() for run in by_seed.values()]
        for which, (filled, shift) in enumerate(((False, -0.16), (True, 0.16))):
            values = [p[which] for p in pairs if p[which] is not None]
            spread = np.linspace(-0.06, 0.06, len(values)) if len(values) > 1 else np.zeros(len(values))
            axes.plot(
                place + shift + spread, values, "o", ms=6, mec=colour, mew=1.4, mfc=colour if filled else "white",
                alpha=0.9, zorder=3,
            )  # fmt: skip
            if filled and values:
                mean = float(np.mean([v for v in values if v is not None]))
                axes.plot([place + 0.02, place + 0.3], [mean, mean], color=INK, lw=1.6, zorder=4)
                highest = max(v for v in values if v is not None)
                axes.text(place + shift, highest + 0.035, f"{mean:.2f}", ha="center", fontsize=9, color=colour)
    if not any(run.accuracy()[1] is not None for by_seed in runs.values() for run in by_seed.values()):
        say_not_logged(axes)
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_ylim(0, 1.12)
    axes.set_xticks([])
    axes.set_xlabel("hollow: before, filled: after, bar: mean", color=GREY, fontsize=9)


def _draw_key(axes: Any, runs: Runs, styles: Mapping[str, tuple[str, str]]) -> None:
    axes.axis("off")
    handles = [Line2D([], [], color=styles[n][0], ls=styles[n][1], lw=2.6, label=n) for n in runs]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=11, labelcolor=INK, borderaxespad=0)
    lines = ["Thin: one seed, running mean over whole"]
    if len(runs) <= MANY:
        lines += ["iterations. Bold: mean of the seeds; its last", "value is at the right edge."]
    else:
        lines += ["iterations. Bold: mean of the seeds."]
    text = "\n".join(lines)
    axes.text(0, 0.02, text, transform=axes.transAxes, fontsize=9, color=GREY, va="bottom")
