"""The page: what the paper says, what is seen here, and every cell; what is missing is said."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.paper_in_miniature.grid import Grid
from gspo_lightning.commands.compare_stats import paired_difference

__all__ = ["page", "read_results"]

Results = dict[str, dict[str, Any]]
Number = Callable[[Mapping[str, Any]], float | None]


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


COLUMNS: dict[str, Number] = {
    "accuracy after": lambda r: r["accuracy_after"],
    "reward, whole run": lambda r: _mean(r["reward"]),
    "clipped tokens": _later("clipped"),
    "largest gradient norm": lambda r: max(r["updates"].get("gradient_norm", []), default=None),
    "std of ratios": _later("ratio_std"),
    "KL to old": _later("kl"),
    "experts: one update": _after_one_update,
    "experts: iteration": lambda r: _mean(r["changed_over_iteration"]),
}
"""Per run. Experts: share of (response token, layer) choices that differ from the old policy's."""

CLAIMS = (
    ("clipped tokens", "GSPO", "GRPO", "GSPO clips two orders of magnitude more tokens (0.15 against 0.0013)"),
    ("reward, whole run", "GSPO", "GRPO", "GSPO earns more for the same compute"),
    ("accuracy after", "GSPO", "GRPO", "GSPO ends better"),
    ("accuracy after", "GSPO", "GRPO tight", "... also against GRPO with GSPO's clip range (our control)"),
    ("largest gradient norm", "GSPO", "GRPO", "GSPO's training is steadier"),
    ("accuracy after", "GRPO + R2", "GRPO", "GRPO needs Routing Replay on a mixture of experts"),
    ("accuracy after", "GSPO", "GRPO + R2", "GSPO does not need it"),
    ("accuracy after", "GSPO-token", "GSPO", "with one advantage per sequence GSPO-token is GSPO"),
    ("accuracy after", "GSPO, bf16 old", "GSPO", "GSPO tolerates old log-probabilities of lower precision"),
    ("accuracy after", "GRPO, bf16 old", "GRPO", "... and GRPO (of which the paper says nothing)"),
)
"""(column, one method, another, what the paper says of the two)."""


def page(grid: Grid, results: Results, command: str) -> str:
    """Markdown."""
    cells = list(grid.cells())
    missing = [cell for cell in cells if cell.name not in results]
    lines = [
        "# The paper in miniature",
        "",
        f"`{command}`: the claims of the GSPO paper (arXiv 2507.18071) on models of 0.1 to 0.6 million parameters, on "
        "a grid that was declared before its runs (`experiments/paper_in_miniature/grid.yaml`). Learning here means "
        "discovering that written steps pay, which takes minutes on a CPU; what does not show at this size says "
        "nothing about 30 billion parameters.",
        "",
        f"**{len(cells) - len(missing)} of {len(cells)} cells have a result.** "
        + ("" if missing else "Nothing is missing."),
        "",
    ]
    if missing:
        count: dict[tuple[str, float, int], int] = {}
        for cell in missing:
            count[cell.regime] = count.get(cell.regime, 0) + 1
        lines += ["Missing: " + "; ".join(f"{n} of {_words(regime)}" for regime, n in count.items()) + ".", ""]
    lines += _claims(grid, results) + _every_cell(grid, results)
    return "\n".join(lines) + "\n"


def _claims(grid: Grid, results: Results) -> list[str]:
    rows = []
    for column, one, other, claim in CLAIMS:
        for regime in _regimes(grid):
            pairs = _pairs(grid, results, regime, one, other, COLUMNS[column])
            if not pairs:
                continue
            means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
            found = paired_difference([b for _, b in pairs], [a for a, _ in pairs])
            factor = f", {means[0] / means[1]:.3g} x" if means[1] > 0 and column == "clipped tokens" else ""
            rows.append(
                f"| {claim} | {_words(regime)} | {column}: {one} {means[0]:.3g}, {other} {means[1]:.3g}{factor} | "
                f"{found.mean:+.3g}{f' [{found.low:+.3g}, {found.high:+.3g}]' if len(pairs) > 1 else ''} | "
                f"{sum(a > b for a, b in pairs)} of {len(pairs)} seeds higher |"
            )
    head = ["## The paper's claims", "", "| claim | regime | seen | difference, 95% bootstrap over seeds | |"]
    note = (
        "Five seeds or fewer support no claim of a difference (`gspo compare` asks for eight): read signs, not stars."
    )
    return [*head, "|---|---|---|---|---|", *rows, "", note, ""] if rows else []


def _every_cell(grid: Grid, results: Results) -> list[str]:
    lines = ["## Every cell", ""]
    for regime in _regimes(grid):
        found = [cell for cell in grid.cells() if cell.regime == regime and cell.name in results]
        if not found:
            continue
        lines += [f"### {_words(regime)}", "", "| method | seeds | " + " | ".join(COLUMNS) + " | failed |"]
        lines.append("|---" * (len(COLUMNS) + 3) + "|")
        for method in dict.fromkeys(cell.method for cell in found):
            own = [results[cell.name] for cell in found if cell.method == method]
            seeds = ", ".join(str(cell.seed) for cell in found if cell.method == method)
            cells = [_cell([number(r) for r in own]) for number in COLUMNS.values()]
            failed = sum(r["failed"] is not None for r in own)
            lines.append(f"| {method} | {seeds} | {' | '.join(cells)} | {failed or ''} |")
        lines.append("")
    return lines


def _cell(values: Sequence[float | None]) -> str:
    """Mean, and every value."""
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    return f"**{statistics.mean(known):.3g}** ({', '.join(f'{v:.3g}' for v in known)})"


def _pairs(
    grid: Grid, results: Results, regime: tuple[str, float, int], one: str, other: str, number: Number
) -> list[tuple[float, float]]:
    """A number of two methods, by seed, where both have it."""
    by_method: dict[str, dict[int, float]] = {one: {}, other: {}}
    for cell in grid.cells():
        if cell.regime == regime and cell.method in by_method and cell.name in results:
            value = number(results[cell.name])
            if value is not None:
                by_method[cell.method][cell.seed] = value
    return [(by_method[one][s], by_method[other][s]) for s in by_method[one] if s in by_method[other]]


def _regimes(grid: Grid) -> list[tuple[str, float, int]]:
    return list(dict.fromkeys(cell.regime for cell in grid.cells()))


def _words(regime: tuple[str, float, int]) -> str:
    model, learning_rate, mini_batches = regime
    return f"{'MoE' if 'moe' in model else 'dense'}, lr {learning_rate:g}, {mini_batches} updates per rollout"
