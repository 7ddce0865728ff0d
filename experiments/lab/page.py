"""The page and the picture of a grid: what is asked, what was seen, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.lab.grid import Grid
from experiments.lab.measures import MEASURES, Measure
from experiments.lab.results import Results, curve
from gspo_lightning.commands.compare.stats import SEEDS_FOR_A_CLAIM, paired_difference
from gspo_lightning.report.style import INK, quiet, style
from gspo_lightning.resume.changes import versions

__all__ = ["draw", "page"]

COLUMNS = 2


def page(grid: Grid, results: Results, command: str, picture: str) -> str:
    """Markdown."""
    cells = list(grid.cells())
    done = len(cells) - len(results.missing)
    lines = [f"# {grid.title}", "", grid.about.strip(), ""]
    lines += [
        f"`{command}` makes the missing runs and writes this page. **{done} of {len(cells)} runs are there.**",
        "",
    ]
    if picture:
        lines += [f"![mean reward against trained tokens, by condition]({picture})", ""]
    lines += ["The runs, on top of " + ", ".join(f"`{c}`" for c in grid.configs) + ":", ""]
    lines += [f"* {name}: `{' '.join(arguments) or 'as it is'}`" for name, arguments in grid.variants.items()]
    lines += [
        "",
        "Means over "
        + ", ".join(f"{s} seeds ({c})" for c, s in ((c, g["seeds"]) for c, g in grid.conditions.items()))
        + f". After the colon: the difference to {grid.baseline}, paired by seed, with the 95% interval of a bootstrap "
        f"over seeds; bold where it leaves 0 out and there are {SEEDS_FOR_A_CLAIM} seeds or more. With fewer seeds "
        "nothing is claimed.",
        "",
    ]
    if len(grid.conditions) == 1:
        lines += _one_table(grid, results)
    else:
        for name in grid.measures:
            lines += _table(grid, results, MEASURES[name])
    lines += _absent(grid, results)
    lines += [f"Versions: {', '.join(f'{k} {v}' for k, v in versions().items())}. One CPU thread.", ""]
    return "\n".join(lines)


def _table(grid: Grid, results: Results, measure: Measure) -> list[str]:
    lines = [f"## {measure.title}", "", f"{measure.says[0].upper()}{measure.says[1:]}.", ""]
    shown = [name for name in grid.conditions if any(results.runs[name].values())]
    lines += ["| | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for variant in grid.variants:
        cells = []
        for condition in shown:
            values = results.values(condition, variant, measure.of)
            base = results.values(condition, grid.baseline, measure.of)
            expected = grid.conditions[condition]["seeds"]
            cells.append(_cell(measure.form, values, base, expected, is_baseline=variant == grid.baseline))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return [*lines, ""]


def _one_table(grid: Grid, results: Results) -> list[str]:
    """Of a single condition: variants down, measures across."""
    (condition,), measures = grid.conditions, [MEASURES[name] for name in grid.measures]
    lines = [f"## {condition}", ""]
    lines += [f"* {measure.title}: {measure.says}" for measure in measures] + [""]
    lines += ["| | " + " | ".join(m.title for m in measures) + " |", "|---" * (len(measures) + 1) + "|"]
    for variant in grid.variants:
        cells = [
            _cell(
                measure.form,
                results.values(condition, variant, measure.of),
                results.values(condition, grid.baseline, measure.of),
                grid.conditions[condition]["seeds"],
                is_baseline=variant == grid.baseline,
            )
            for measure in measures
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(
    form: str, values: Mapping[int, float], base: Mapping[int, float], expected: int, *, is_baseline: bool
) -> str:
    if not values:
        return "-"
    shown = form.format(mean(values.values()))
    if len(values) < expected:
        shown += f" ({len(values)} of {expected} seeds)"
    both = sorted(set(values) & set(base))
    if is_baseline or not both:
        return shown
    found = paired_difference([base[s] for s in both], [values[s] for s in both])
    difference = f"{found.mean:+.3g} [{found.low:+.3g}, {found.high:+.3g}]"
    return f"{shown}: **{difference}**" if found.words in ("higher", "lower") else f"{shown}: {difference}"


def _absent(grid: Grid, results: Results) -> list[str]:
    lines = []
    if results.failed:
        lines += ["## Runs that stopped with an error", ""]
        lines += [f"* {name}: {why}" for name, why in results.failed.items()] + [""]
    if results.missing:
        by_condition = {
            condition: sum(cell.condition == condition and cell.name in set(results.missing) for cell in grid.cells())
            for condition in grid.conditions
        }
        lines += ["## Not run", ""]
        lines += [f"* {condition}: {count} runs" for condition, count in by_condition.items() if count] + [""]
    return lines


def draw(grid: Grid, results: Results) -> Figure:
    """A panel per condition: mean reward over seeds against trained tokens."""
    shown = [name for name, variants in results.runs.items() if any(variants.values())]
    columns = min(COLUMNS, len(shown)) or 1
    rows = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(10, 3.2 * rows), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    for number, condition in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, number)
        for place, variant in enumerate(grid.variants):
            if line := curve(results.runs[condition][variant]):
                colour, dash = style(place)
                axes.plot(*zip(*line, strict=True), color=colour, linestyle=dash, linewidth=1.6, label=variant)
        quiet(axes, condition, "mean reward")
        axes.set_xlabel("trained tokens", color=INK, fontsize=8)
        if number == 1:
            axes.legend(frameon=False, fontsize=7)
    return figure
