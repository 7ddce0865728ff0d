"""Held-out results in a run's folder, and the picture drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gspo_lightning.core.parsing import load_json
from gspo_lightning.report.run import Run, number
from gspo_lightning.report.style import FAINT, GREY, INK, canvas, quiet, save, say_not_logged, style
from gspo_lightning.resume import write_text
from gspo_lightning.training.reward_models.held_out import HeldOut

RESULTS = "results.json"
MARGINS = "held_out_margins.json"
PICTURE = "report.png"
Curve = Sequence[tuple[int, float]]


def write_record(folder: Path, results: Mapping[str, Any], margins: Sequence[float]) -> None:
    """Write ``results.json``, and next to it the numbers that only the picture needs.

    Args:
        folder: of the run.
        results: with ``held_out`` (:meth:`HeldOut.as_dict`) and ``updates``.
        margins: [N] chosen minus rejected reward of each held-out pair.
    """
    write_text(folder / MARGINS, json.dumps(list(margins)) + "\n")
    write_text(folder / RESULTS, json.dumps(results, indent=2) + "\n")


def read_results(folder: Path, updates: int) -> dict[str, Any] | None:
    """Return ``results.json`` of a run, if it was written after exactly this many updates, else None."""
    try:
        results = load_json((folder / RESULTS).read_text(encoding="utf-8"))
        HeldOut.of_dict(results["held_out"])
        return dict(results) if results["updates"] == updates else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def draw_again(run: Run, path: Path) -> HeldOut | None:
    """Draw the picture of a run from its folder; of an unfinished run, its curves so far.

    Args:
        run: the run that was read; missing parts are added to its problems.
        path: of a PNG.

    Returns:
        The final results on held-out pairs; None for an unfinished run.
    """
    held_out = _held_out(run)
    margins: list[float] = []
    if held_out is not None:
        try:
            margins = [float(margin) for margin in load_json((run.folder / MARGINS).read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            run.problems.append(f"no margins of held-out pairs are drawn: {MARGINS} is {_fault(error)}")
    curves = {}
    for tag, series in run.scalars.items():
        curves[tag] = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    draw(path, curves, held_out, margins)
    return held_out


def _held_out(run: Run) -> HeldOut | None:
    """Return the final results of a run; None without usable ones, with the reason among the run's problems."""
    try:
        results = load_json((run.folder / RESULTS).read_text(encoding="utf-8"))
        held_out = HeldOut.of_dict(results["held_out"])
        updates = number(results["updates"])
    except FileNotFoundError:
        run.problems.append(f"no {RESULTS}: the run has not finished; its curves are drawn as far as it went")
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        run.problems.append(f"no results on held-out pairs are drawn: {RESULTS} is {_fault(error)}")
        return None
    if updates is not None and run.updates > updates:
        run.problems.append(f"{RESULTS} was written at update {updates:.0f}, before the run went on")
        return None
    return held_out


def _fault(error: Exception) -> str:
    if isinstance(error, OSError):
        return "missing" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
    return f"damaged ({error})"


def draw(path: Path, curves: Mapping[str, Curve], held_out: HeldOut | None, margins: Sequence[float]) -> None:
    """Draw the plots to a PNG.

    Args:
        path: of the PNG.
        curves: tag -> (optimizer step, value): ``reward_model/loss``, ``accuracy``, ``val_loss``, ``val_accuracy``.
        held_out: results on the held-out pairs at the end; None before it.
        margins: [N] chosen minus rejected reward of each held-out pair; empty if unknown.
    """
    figure = canvas(10, 7, layout="constrained")
    loss, accuracy, calibration, spread = figure.subplots(2, 2).flat
    _curves(loss, curves, "loss", "nats per pair")
    _curves(accuracy, curves, "accuracy", "share of pairs")
    _calibration(calibration, held_out)
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
    for place, (tag, label) in enumerate(((name, "training pairs"), (f"val_{name}", "held-out pairs"))):
        steps = [step for step, _ in curves.get(f"reward_model/{tag}", ())]
        values = [value for _, value in curves.get(f"reward_model/{tag}", ())]
        marks = "o-" if place else "-"
        axes.plot(steps, values, marks, color=style(place)[0], lw=2.0 if place else 0.9, ms=4, label=label)
    axes.set_xlabel("updates", color=GREY, fontsize=9)
    axes.legend(fontsize=8, frameon=False)


def _calibration(axes: Any, held_out: HeldOut | None) -> None:
    if held_out is None:
        quiet(axes, "Calibration", "share that is right")
        say_not_logged(axes)
        return
    accuracy = held_out.accuracy
    interval = ""
    if accuracy.low is not None and accuracy.high is not None:
        interval = f" ({accuracy.low:.3f} to {accuracy.high:.3f})"
    title = f"Calibration: accuracy {accuracy.value:.3f}{interval}, error {held_out.ece:.3f}"
    quiet(axes, title, "share that is right")
    axes.plot([0.5, 1], [0.5, 1], color=FAINT, lw=1.5, zorder=1)  # of a perfectly calibrated model
    bins = held_out.bins
    sizes = [20 + 380 * b.pairs / held_out.pairs for b in bins]
    axes.scatter(
        [b.confidence for b in bins], [b.accuracy for b in bins], s=sizes, color=style(0)[0], alpha=0.85, zorder=2
    )
    axes.set_xlabel("sigmoid of the margin's size; area: pairs", color=GREY, fontsize=9)
    axes.set_xlim(0.48, 1.02)
