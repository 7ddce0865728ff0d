"""Report page of an evaluation: ``report.md`` and its figure ``report.png``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gspo_lightning.commands.evaluate.table import interval, number
from gspo_lightning.core.escape import cell
from gspo_lightning.report.style import GREY, INK, bare, canvas, save, style

PAGE = "report.md"
PICTURE = "report.png"
_EXPLAINED = """\
The unit is the problem. *Problems like these*: where the number would lie for other problems of the kind, with other
answers. *These problems*: for new answers to the same problems only; two models on one set of problems are compared
by `gspo evaluate --compare`, not by whether such intervals overlap. A dash: too few problems or answers to tell.
"""
_RATING = """\
The rating is an *offline estimate*: the mean over contests of the rating whose expected place is ours, in expectation
over the order of submissions (at most 8 a problem), with Student's interval over contests. Which contests and which
sampling move such a number by hundreds of points (arXiv 2602.05891).
"""


def write_page(folder: Path, results: Mapping[str, Any]) -> None:
    """Write ``report.md`` and ``report.png`` to ``folder``."""
    suites = {name: metrics for name, metrics in results.items() if name != "run"}
    save(_figure(suites), folder / PICTURE)
    lines = ["# Evaluation", "", f"![shares with their intervals]({PICTURE})", "", _EXPLAINED]
    for name, metrics in suites.items():
        described = results["run"]["suites"][name]
        window = f", {cell(described['window'])}" if described["window"] else ""
        lines += [f"## {cell(name)}", "", f"{described['problems']} problems{window}.", ""]
        lines += ["| | value | 95 %, problems like these | 95 %, these problems | problems |", "|---" * 5 + "|"]
        for metric, estimate in metrics.items():
            these = {"low": None, "high": None, **estimate.get("these_problems", {})}
            cells = (
                cell(metric),
                number(metric, estimate["value"]),
                interval(metric, estimate),
                interval(metric, these),
                str(estimate["n"]),
            )
            lines.append(f"| {' | '.join(cells)} |")
        if "rating" in metrics:
            lines += ["", _RATING]
        lines += ["", *(f"* {cell(note)}" for note in results["run"]["notes"].get(name, ())), ""]
    versions = ", ".join(f"{name} {cell(number)}" for name, number in results["run"]["versions"].items())
    lines += [f"Made with {versions}.", ""]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")


def _figure(suites: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a row per metric: the value, the interval for problems like these (thin), for these problems (thick)."""
    rows = []
    for suite, metrics in suites.items():
        rows += [(suite, metric, estimate) for metric, estimate in metrics.items() if not metric.startswith("rating")]
    figure = canvas(8, 1.1 + 0.34 * len(rows), layout="constrained")
    axes = figure.add_subplot()
    colours = {suite: style(i)[0] for i, suite in enumerate(suites)}
    for place, (suite, _, estimate) in enumerate(rows):
        colour = colours[suite]
        value = 100 * estimate["value"]
        these = estimate.get("these_problems")
        if estimate["low"] is not None:
            axes.plot([100 * estimate["low"], 100 * estimate["high"]], [place, place], color=colour, linewidth=1.2)
        if these:
            axes.plot([100 * these["low"], 100 * these["high"]], [place, place], color=colour, linewidth=4, alpha=0.4)
        axes.plot(value, place, "o", color=colour, markersize=5)
        axes.annotate(
            f"{value:.1f}",
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            color=INK,
            fontsize=8,
        )
    axes.set_yticks(range(len(rows)), [f"{suite}  {metric}" for suite, metric, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("%; thin: problems like these, thick: these problems (95 %)", color=GREY, fontsize=8)
    bare(axes, "top", "right", "left")
    axes.tick_params(length=0)
    return figure
