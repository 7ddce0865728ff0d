"""The figure of docs/real_model.md: curves of training, and held-out accuracy before and after."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from gspo_lightning.report.style import COLOURS, GREY, canvas, quiet

JUDGES = {"right": "ended and verified", "lenient": "last number,\n4 x the limit", "ended": "answers that\nend"}


def draw(results: dict[str, Any]) -> Figure:
    """Return two panels: reward and held-out accuracy over updates, and every judge before and after."""
    figure = canvas(9, 3.4, dpi=110, facecolor="white")
    left, right = figure.add_axes((0.07, 0.16, 0.4, 0.72)), figure.add_axes((0.56, 0.16, 0.42, 0.72))
    for number, (name, run) in enumerate(results["runs"].items()):
        for tag, look in (("val/accuracy", "o-"), ("reward/mean", ":")):
            curve = run["curves"].get(tag, [])
            label = name if tag == "val/accuracy" else None
            left.plot(*zip(*curve, strict=True), look, color=COLOURS[number], lw=1.4, ms=4, label=label)
    quiet(left, "While training (dotted: reward)", "fraction right, 64 held-out")
    left.set_xlabel("updates", color=GREY, fontsize=9)
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    columns = {"before": results["before"], **results["runs"], **results.get("others", {})}
    for number, (name, values) in enumerate(columns.items()):
        shown = [values[judge] for judge in JUDGES]
        heights = [one["value"] for one in shown]
        errors = [[h - one["low"] for h, one in zip(heights, shown, strict=True)]]
        errors.append([one["high"] - h for h, one in zip(heights, shown, strict=True)])
        places = [place + 0.8 * number / len(columns) for place in range(len(JUDGES))]
        colour = GREY if number == 0 else COLOURS[number - 1]
        right.bar(places, heights, 0.72 / len(columns), yerr=errors, color=colour, label=name, ecolor="#222222")
    quiet(right, f"{results['problems']} held-out problems, 95 % intervals", "fraction")
    right.set_xticks([place + 0.3 for place in range(len(JUDGES))], list(JUDGES.values()))
    right.legend(frameon=False, fontsize=8, loc="upper left")
    return figure
