"""The page and the picture: every seed of every variant, and what may be claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.curricula.numbers import GOAL, Numbers
from gspo_lightning.commands.compare.stats import SEEDS_FOR_A_CLAIM, paired_difference
from gspo_lightning.report.style import COLOURS, INK, quiet
from gspo_lightning.resume.changes import versions

__all__ = ["draw", "page"]

Results = Mapping[str, Mapping[int, Numbers]]
MEASURES: dict[str, tuple[str, Callable[[Numbers], float | None]]] = {
    "Tokens sampled per useful group": ("{:.0f}", lambda n: n.tokens_per_useful_group),
    f"Rollouts to {GOAL:.0%} held-out accuracy": ("{:.0f}", lambda n: n.rollouts_to_goal),
    "Held-out accuracy at the end": ("{:.3f}", lambda n: n.accuracy),
}


def page(results: Results, variants: Mapping[str, str], iterations: int) -> str:
    """Markdown."""
    first, seeds = next(iter(results)), list(next(iter(results.values())))
    lines = [
        "# Curricula beside dead-group resampling",
        "",
        "The quickstart's task with expressions of 3, 4 and 6 operands in one file (2,048 + 4,096 + 4,096 prompts) and "
        f"the number of operands in the column `difficulty`. All runs begin with one cold start and have {iterations} "
        "iterations of 32 prompts x 8 responses; everything else is as in the quickstart. "
        "`python -m experiments.curricula` makes the runs with `gspo compare` and writes this page; finished runs are "
        "not repeated. No setting was tuned on these runs but one: `Informative` had sharpness 4 by default until its "
        "first two seeds, and has 1 since. So seeds 1 and 2 are not independent evidence for it.",
        "",
        "![held-out accuracy against responses sampled](results.png)",
        "",
        *(f"* {name}: `{arguments}`" for name, arguments in variants.items()),
        "",
        "A useful group is one whose rewards are not all equal. Accuracy is that of greedy answers to 64 held-out "
        f"prompts of each difficulty, every second iteration. A run that never reached {GOAL:.0%} has a dash and does "
        "not count in that row's mean and difference, which therefore flatter a variant with dashes.",
        "",
    ]
    for title, (form, of) in MEASURES.items():
        lines += [f"## {title}", "", "| | " + " | ".join(f"seed {s}" for s in seeds) + f" | mean | than {first} |"]
        lines += ["|---" * (len(seeds) + 3) + "|"]
        base = [of(numbers) for numbers in results[first].values()]
        for name, by_seed in results.items():
            row = [of(numbers) for numbers in by_seed.values()]
            known = [v for v in row if v is not None]
            cells = ["-" if v is None else form.format(v) for v in row]
            average = form.format(mean(known)) if known else "-"
            lines.append(f"| {name} | {' | '.join(cells)} | {average} | {_verdict(base, row, name == first)} |")
        lines.append("")
    found = ", ".join(f"{k} {v}" for k, v in versions().items())
    lines += [
        "Differences are paired by seed: mean [95% interval of a bootstrap over seeds], as `gspo compare` computes "
        f"them. Fewer than {SEEDS_FOR_A_CLAIM} seeds support no claim. The intervals are not corrected for the number "
        f"of comparisons on this page, {len(MEASURES) * (len(results) - 1)}: one that ends near 0 may be chance.",
        "",
        f"Versions: {found}. One CPU thread.",
        "",
    ]
    return "\n".join(lines)


def _verdict(base: Sequence[float | None], row: Sequence[float | None], same: bool) -> str:
    pairs = [(a, b) for a, b in zip(base, row, strict=True) if a is not None and b is not None]
    if same or not pairs:
        return "" if same else "-"
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return f"{found.mean:+.3g} [{found.low:+.3g}, {found.high:+.3g}]: {found.words}"


def draw(results: Results) -> Figure:
    """Accuracy against responses sampled: a thin line a seed, a thick one their mean by evaluation."""
    figure = Figure(figsize=(9, 5), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.12, 0.89, 0.8))
    for colour, (name, by_seed) in zip(COLOURS, results.items(), strict=False):
        curves = [numbers.curve for numbers in by_seed.values()]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.6, alpha=0.35)
        middle = [(mean(x for x, _ in at), mean(y for _, y in at)) for at in zip(*curves, strict=True)]
        axes.plot(*zip(*middle, strict=True), color=colour, linewidth=2, label=name)
    axes.axhline(GOAL, color=INK, linewidth=0.6, linestyle=(0, (2, 2)))
    quiet(axes, "Held-out accuracy", "fraction")
    axes.set_xlabel("responses sampled, those of replaced groups included")
    axes.legend(frameon=False, fontsize=8)
    return figure
