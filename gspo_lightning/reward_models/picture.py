"""Plots of a reward model run: loss and accuracy, calibration and margins on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gspo_lightning.report.save import save
from gspo_lightning.report.style import FAINT, GREY, INK, quiet, say_not_logged, style
from gspo_lightning.reward_models.held_out import HeldOut

__all__ = ["draw"]

Curve = Sequence[tuple[int, float]]


def draw(path: Path, curves: Mapping[str, Curve], found: HeldOut | None, margins: Sequence[float]) -> None:
    """Draw the plots to a PNG.

    Args:
        path: of the PNG.
        curves: tag -> (optimizer step, value): ``reward_model/loss``, ``accuracy``, ``val_loss``, ``val_accuracy``.
        found: results on the held-out pairs at the end; None before it.
        margins: [N] chosen minus rejected reward of each held-out pair; empty if unknown.
    """
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, calibration, spread = figure.subplots(2, 2).flat
    _curves(loss, curves, "loss", "nats per pair")
    _curves(accuracy, curves, "accuracy", "share of pairs")
    _calibration(calibration, found)
    _margins(spread, margins)
    save(figure, path)


def _margins(spread: Any, margins: Sequence[float]) -> None:
    quiet(spread, "Held-out margins", "pairs")
    if not margins:
        say_not_logged(spread)
        return
    spread.hist(np.asarray(margins), bins=40, color=style(0)[0])
    spread.axvline(0, color=INK, linewidth=1)
    spread.set_xlabel("chosen minus rejected reward", color=GREY, fontsize=9)


def _curves(axes: Any, curves: Mapping[str, Curve], name: str, unit: str) -> None:
    quiet(axes, name.capitalize(), unit)
    for number, (tag, label) in enumerate(((name, "training pairs"), (f"val_{name}", "held-out pairs"))):
        steps = [step for step, _ in curves.get(f"reward_model/{tag}", ())]
        values = [value for _, value in curves.get(f"reward_model/{tag}", ())]
        marks = "o-" if number else "-"
        axes.plot(steps, values, marks, color=style(number)[0], lw=2.0 if number else 0.9, ms=4, label=label)
    axes.set_xlabel("updates", color=GREY, fontsize=9)
    axes.legend(fontsize=8, frameon=False)


def _calibration(axes: Any, found: HeldOut | None) -> None:
    if found is None:
        quiet(axes, "Calibration", "share that is right")
        say_not_logged(axes)
        return
    low, high = found.accuracy.low, found.accuracy.high
    interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    title = f"Calibration: accuracy {found.accuracy.value:.3f}{interval}, error {found.ece:.3f}"
    quiet(axes, title, "share that is right")
    axes.plot([0.5, 1], [0.5, 1], color=FAINT, lw=1.5, zorder=1)
    sizes = [20 + 380 * b.pairs / found.pairs for b in found.bins]
    confidence, right = [b.confidence for b in found.bins], [b.accuracy for b in found.bins]
    axes.scatter(confidence, right, s=sizes, color=style(0)[0], alpha=0.85, zorder=2)
    axes.set_xlabel("sigmoid of the margin's size; area: pairs", color=GREY, fontsize=9)
    axes.set_xlim(0.48, 1.02)
