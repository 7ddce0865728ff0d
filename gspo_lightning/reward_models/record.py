"""Held-out results in a run's folder, and the picture drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.report.run import Run, number
from gspo_lightning.resume import write_text
from gspo_lightning.reward_models.held_out import HeldOut
from gspo_lightning.reward_models.picture import draw

__all__ = ["MARGINS", "PICTURE", "RESULTS", "draw_again", "read_results", "write_record"]

RESULTS, MARGINS, PICTURE = "results.json", "held_out_margins.json", "report.png"


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
        results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        HeldOut.of_dict(results["held_out"])
        return dict(results) if results["updates"] == updates else None
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None


def draw_again(run: Run, path: Path) -> HeldOut | None:
    """Draw the picture of a run from its folder; of an unfinished run, its curves so far.

    Args:
        run: the run that was read; missing parts are added to its problems.
        path: of a PNG.

    Returns:
        The final results on held-out pairs; None for an unfinished run.
    """
    found, margins = _found(run), list[float]()
    if found is not None:
        try:
            margins = [float(margin) for margin in json.loads((run.folder / MARGINS).read_text(encoding="utf-8"))]
        except (OSError, ValueError, RecursionError, TypeError) as error:
            run.problems.append(f"no margins of held-out pairs are drawn: {MARGINS} is {_fault(error)}")
    curves = {tag: list(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for tag, s in run.scalars.items()}
    draw(path, curves, found, margins)
    return found


def _found(run: Run) -> HeldOut | None:
    try:
        results = json.loads((run.folder / RESULTS).read_text(encoding="utf-8"))
        found, updates = HeldOut.of_dict(results["held_out"]), number(results["updates"])
    except FileNotFoundError:
        run.problems.append(f"no {RESULTS}: the run has not finished; its curves are drawn as far as it went")
        return None
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        run.problems.append(f"no results on held-out pairs are drawn: {RESULTS} is {_fault(error)}")
        return None
    if updates is not None and run.updates > updates:
        run.problems.append(f"{RESULTS} was written at update {updates:.0f}, before the run went on")
        return None
    return found


def _fault(error: Exception) -> str:
    if isinstance(error, OSError):
        return "missing" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
    return f"damaged ({error})"
