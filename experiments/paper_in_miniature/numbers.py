"""What is read off one run, and how two methods are paired seed by seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.paper_in_miniature.grid import Grid

__all__ = ["COLUMNS", "Number", "Regime", "Results", "pairs", "read_results", "regimes", "reward_for_tokens", "words"]

Results = dict[str, dict[str, Any]]
Number = Callable[[Mapping[str, Any]], float | None]
Regime = tuple[str, float, int]


def read_results(folder: Path) -> Results:
    """Name of a cell -> its result, of the cells that have one."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _later(word: str) -> Number:
    """Mean over the updates that are not the first of their iteration, where a ratio is 1 by definition."""

    def of(result: Mapping[str, Any]) -> float | None:
        updates = result["updates"]
        return _mean([v for v, i in zip(updates.get(word, []), updates.get("index", []), strict=False) if i > 0])

    return of


def _after_one_update(result: Mapping[str, Any]) -> float | None:
    updates = result["updates"]
    return _mean([v for v, i in zip(updates.get("changed", []), updates.get("index", []), strict=False) if i == 1])


def _spike(result: Mapping[str, Any]) -> float | None:
    norms = [v for v in result["updates"].get("gradient_norm", []) if v > 0]
    return max(norms) / statistics.median(norms) if norms else None


def _fall(result: Mapping[str, Any]) -> float | None:
    """How far the last two iterations lie below the best two in a row: 0 for a run that never falls."""
    both = [statistics.mean(two) for two in zip(result["reward"], result["reward"][1:], strict=False)]
    return max(both) - both[-1] if both else None


COLUMNS: dict[str, Number] = {
    "accuracy after": lambda r: r["accuracy_after"],
    "reward, whole run": lambda r: _mean(r["reward"]),
    "fall of the reward": _fall,
    "clipped tokens": _later("clipped"),
    "largest gradient norm": lambda r: max(r["updates"].get("gradient_norm", []), default=None),
    "largest / median": _spike,
    "std of ratios": _later("ratio_std"),
    "KL to old": _later("kl"),
    "experts: one update": _after_one_update,
    "experts: iteration": lambda r: _mean(r["changed_over_iteration"]),
}
"""Per run. ``fall of the reward``: mean of its best two iterations in a row less that of its last two. ``largest /
median``: of the gradient norms. Experts: share of (response token, layer) choices that differ from the old policy's."""


def reward_for_tokens(budget: float) -> Number:
    """Mean reward over the first ``budget`` trained tokens of a run; None where it has trained on fewer."""

    def of(result: Mapping[str, Any]) -> float | None:
        ends = np.cumsum(result.get("tokens", []))
        if not len(ends) or ends[-1] < budget:
            return None
        spent = np.diff(np.minimum(ends, budget), prepend=0.0)
        return float(np.dot(spent, result["reward"]) / budget)

    return of


def pairs(
    grid: Grid, results: Results, regime: Regime, one: str, other: str, number: Number
) -> list[tuple[float, float]]:
    """A number of two methods, by seed, where both have it."""
    by_method: dict[str, dict[int, float]] = {one: {}, other: {}}
    for cell in grid.cells():
        if cell.regime == regime and cell.method in by_method and cell.name in results:
            value = number(results[cell.name])
            if value is not None:
                by_method[cell.method][cell.seed] = value
    return [(by_method[one][s], by_method[other][s]) for s in by_method[one] if s in by_method[other]]


def regimes(grid: Grid) -> list[Regime]:
    """In the order of the grid."""
    return list(dict.fromkeys(cell.regime for cell in grid.cells()))


def words(regime: Regime) -> str:
    """A regime for people."""
    model, learning_rate, mini_batches = regime
    return f"{'MoE' if 'moe' in model else 'dense'}, lr {learning_rate:g}, {mini_batches} updates per rollout"
