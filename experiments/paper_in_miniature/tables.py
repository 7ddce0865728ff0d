"""The page: what the paper says, what is seen here, and every cell; what is missing is said."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.paper_in_miniature.claims import claims, experts, much_is_clipped
from experiments.paper_in_miniature.grid import Grid
from experiments.paper_in_miniature.numbers import COLUMNS, Regime, Results, regimes, words

__all__ = ["page"]


def page(grid: Grid, results: Results, command: str, picture: str = "") -> str:
    """Markdown; ``picture`` is the file name of the curves, if there are any."""
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
        count: dict[Regime, int] = {}
        for cell in missing:
            count[cell.regime] = count.get(cell.regime, 0) + 1
        lines += ["Missing: " + "; ".join(f"{n} of {words(regime)}" for regime, n in count.items()) + ".", ""]
    if failed := [cell.name for cell in cells if results.get(cell.name, {}).get("failed")]:
        lines += [f"**{len(failed)} runs broke off**: {', '.join(failed)}.", ""]
    lines += claims(grid, results)
    if picture:
        lines += [
            "## Curves", "",
            "A row for each regime; a colour for each method, the same everywhere; thin: one seed, bold: their mean. "
            "GSPO-token lies on GSPO: with one advantage per sequence they are the same training.",
            "", f"![reward against tokens, clipped tokens and gradient norms in every regime]({picture})", "",
        ]  # fmt: skip
    lines += much_is_clipped(grid, results) + experts(grid, results) + _every_cell(grid, results)
    return "\n".join(lines) + "\n"


def _every_cell(grid: Grid, results: Results) -> list[str]:
    lines = [
        "## Every cell", "",
        "**Mean** (every seed). Clipped tokens, std of ratios and KL: over the updates that are not the first of their "
        "iteration. Fall of the reward: the best two iterations in a row less the last two. Largest / median: of the "
        "gradient norms of a run. Experts: see above.", "",
    ]  # fmt: skip
    for regime in regimes(grid):
        found = [cell for cell in grid.cells() if cell.regime == regime and cell.name in results]
        if not found:
            continue
        numbers = {
            name: of for name, of in COLUMNS.items() if any(of(results[cell.name]) is not None for cell in found)
        }
        lines += [f"### {words(regime)}", "", "| method | seeds | " + " | ".join(numbers) + " | failed |"]
        lines.append("|---" * (len(numbers) + 3) + "|")
        for method in dict.fromkeys(cell.method for cell in found):
            own = [results[cell.name] for cell in found if cell.method == method]
            seeds = ", ".join(str(cell.seed) for cell in found if cell.method == method)
            cells = [_cell([number(r) for r in own]) for number in numbers.values()]
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
