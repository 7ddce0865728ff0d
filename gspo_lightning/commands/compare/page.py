"""Page of a comparison: tables, and a figure with a colour per variant, a line per seed and their mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from gspo_lightning.commands.compare.stats import MEASURES, SEEDS_FOR_A_CLAIM, Measure, paired_difference
from gspo_lightning.core.escape import cell, fenced
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.style import (
    GREY,
    INK,
    MANY,
    Panel,
    draw_key,
    dress,
    grid_of,
    heading,
    label_ends,
    lines_of,
    logarithmic,
    note,
    poster,
    quiet,
    say_not_logged,
    smooth,
    style,
    window,
)
from gspo_lightning.report.words import plain

Runs = Mapping[str, Mapping[int, Run]]


def page(runs: Runs, command: str, picture: str) -> str:
    """Return a Markdown page with the values of every seed and variant, and the claims that they support."""
    names = list(runs)
    seeds = list(next(iter(runs.values())))
    lines = [f"# {cell(' / '.join(names))}", "", "The same prompts, seeds, draws and cold starts for all. Made by:", ""]
    lines += [fenced(command, "bash"), "", f"![curves]({picture})", ""]
    for measure in MEASURES:
        values = _values(measure, runs)
        if not any(v is not None for row in values.values() for v in row):
            continue
        lines += [f"## {measure.name[:1].upper()}{measure.name[1:]}", ""]
        lines += ["| | " + " | ".join(f"seed {s}" for s in seeds) + " | mean | than " + cell(names[0]) + " |"]
        lines += ["|---" * (len(seeds) + 3) + "|"]
        first = values[names[0]]
        for name, row in values.items():
            cells = [cell(name), *(plain(value) for value in row), _average(row), _verdict(first, row)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines.append(
        f"Differences are paired by seed: mean [95% interval of a bootstrap over seeds]. Fewer than "
        f"{SEEDS_FOR_A_CLAIM} seeds support no claim, whatever the interval. No correction for looking at "
        f"{len(MEASURES)} measures."
    )
    return "\n".join(lines) + "\n"


def summary_table(runs: Runs) -> Table:
    """Return the terminal table: means over seeds, one column per variant."""
    table = Table(title=f"means over {len(next(iter(runs.values())))} seeds", title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right", overflow="fold")
    for measure in MEASURES:
        values = _values(measure, runs)
        if any(v is not None for row in values.values() for v in row):
            table.add_row(measure.name, *(_average(row) for row in values.values()))
    return table


def _values(measure: Measure, runs: Runs) -> dict[str, list[float | None]]:
    """Return name of a variant -> its values by seed."""
    return {name: [measure.of(run) for run in by_seed.values()] for name, by_seed in runs.items()}


def _average(row: Sequence[float | None]) -> str:
    measured = [value for value in row if value is not None]
    return plain(sum(measured) / len(measured)) if len(measured) == len(row) else "-"


def _verdict(first: Sequence[float | None], row: Sequence[float | None]) -> str:
    if first is row:
        return ""
    pairs = [(a, b) for a, b in zip(first, row, strict=True) if a is not None and b is not None]
    if not pairs:
        return "-"
    difference = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return f"{difference.mean:+.3g} [{difference.low:+.3g}, {difference.high:+.3g}]: {difference.words}"


PANELS = (
    Panel("reward/mean", "Training reward", "mean reward"),
    Panel("clip/tokens", "Clipped tokens", "fraction of tokens (0 not shown)", log=True),
    Panel("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Panel("ratio/log_sequence_std", "Spread of sequence ratios", "std of log s_i (nats per token)"),
    Panel("policy/entropy", "Entropy", "nats per token"),
    Panel("response/length", "Response length", "tokens"),
)
ROUTES = Panel("moe/changed_choices", "Routed choices unlike the old policy's", "fraction of (token, layer)")


def draw(runs: Runs) -> Figure:
    """Draw the figure, without touching matplotlib's global state."""
    routed = any(ROUTES.tag in run.scalars for run in _all(runs))
    panels = [*PANELS[:5], ROUTES] if routed else PANELS
    styles = {name: style(number) for number, name in enumerate(runs)}
    figure = poster()
    grid = grid_of(figure, wspace=0.42, hspace=0.36)
    _draw_accuracy(figure.add_subplot(grid[0, 0]), runs, styles)
    places = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    for panel, (row, column) in zip(panels, places, strict=True):
        _draw_panel(figure.add_subplot(grid[row, column]), panel, runs, styles)
    draw_key(figure.add_subplot(grid[1, 3]), styles, _explanation(runs))
    seeds = list(next(iter(runs.values())))
    first = _all(runs)[0]
    text = f"{first.model}  ·  {len(seeds)} seeds ({', '.join(map(str, seeds))})  ·  the same prompts and cold starts"
    heading(figure, list(runs), text)
    return figure


def _all(runs: Runs) -> list[Run]:
    return [run for by_seed in runs.values() for run in by_seed.values()]


def _draw_panel(axes: Any, panel: Panel, runs: Runs, styles: Mapping[str, tuple[str, str]]) -> None:
    dress(axes, panel.title, panel.unit, lines_of(_all(runs)))
    axes.set_xlabel("optimizer updates", color=GREY, fontsize=9)
    ends = []
    absent = []
    for name, by_seed in runs.items():
        steps = []
        curves = []
        for run in by_seed.values():
            series = run.get(panel.tag)
            if series is not None:
                steps.append(series.steps)
                curves.append(_smoothed(run, series, panel.log))
        if not curves:
            absent.append(name)
            continue
        colour, dash = styles[name]
        for x, y in zip(steps, curves, strict=True):
            axes.plot(x, y, color=colour, lw=0.9, alpha=0.45, zorder=2)
        common = min(len(curve) for curve in curves)
        mean = np.mean([curve[:common] for curve in curves], axis=0)
        axes.plot(steps[0][:common], mean, color=colour, lw=2.4, ls=dash, zorder=3)
        if np.isfinite(mean[-1]):
            ends.append((float(mean[-1]), colour))
    if len(absent) == len(runs):
        say_not_logged(axes)
        return
    if panel.log:
        logarithmic(axes)
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
        colour, _ = styles[name]
        pairs = [run.accuracy() for run in by_seed.values()]
        before = [value for value, _ in pairs if value is not None]
        after = [value for _, value in pairs if value is not None]
        for values, shift, fill in ((before, -0.16, "white"), (after, 0.16, colour)):
            spread = np.linspace(-0.06, 0.06, len(values)) if len(values) > 1 else np.zeros(len(values))
            axes.plot(place + shift + spread, values, "o", ms=6, mec=colour, mew=1.4, mfc=fill, alpha=0.9, zorder=3)
        if after:
            mean = float(np.mean(after))
            axes.plot([place + 0.02, place + 0.3], [mean, mean], color=INK, lw=1.6, zorder=4)
            axes.text(place + 0.16, max(after) + 0.035, f"{mean:.2f}", ha="center", fontsize=9, color=colour)
    if not any(run.accuracy()[1] is not None for run in _all(runs)):
        say_not_logged(axes)
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_ylim(0, 1.12)
    axes.set_xticks([])
    axes.set_xlabel("hollow: before, filled: after, bar: mean", color=GREY, fontsize=9)


def _explanation(names: Collection[str]) -> str:
    """Return the text of the key."""
    lines = ["Thin: one seed, running mean over whole"]
    if len(names) <= MANY:
        lines += ["iterations. Bold: mean of the seeds; its last", "value is at the right edge."]
    else:
        lines += ["iterations. Bold: mean of the seeds."]
    return "\n".join(lines)
