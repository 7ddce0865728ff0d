"""What the paper says of two methods, and what is seen: one line a claim, then every regime."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.paper_in_miniature.grid import Grid
from experiments.paper_in_miniature.numbers import (
    COLUMNS,
    Number,
    Regime,
    Results,
    pairs,
    regimes,
    reward_for_tokens,
    words,
)
from gspo_lightning.commands.compare.stats import paired_difference

__all__ = ["CLAIMS", "Claim", "claims", "experts", "much_is_clipped"]

EQUAL_TOKENS = "reward for the same tokens"
HEAVY = 0.5
"""Clipped tokens, as a share: what the issue of tolerance is about."""


@dataclass(frozen=True, slots=True)
class Claim:
    """``column`` is ``higher`` (or lower, or the same) for method ``one`` than for ``other``."""

    text: str
    column: str
    one: str
    other: str
    direction: int

    def number(self, grid: Grid, results: Results, regime: Regime) -> Number:
        """What is compared."""
        if self.column != EQUAL_TOKENS:
            return COLUMNS[self.column]
        own = [results[c.name] for c in grid.cells() if c.regime == regime and c.name in results]
        return reward_for_tokens(min((sum(r.get("tokens", [])) for r in own), default=0.0) or 1.0)


CLAIMS = (
    Claim("GSPO clips far more tokens (paper: 0.15 against 0.0013)", "clipped tokens", "GSPO", "GRPO", +1),
    Claim("GSPO earns more for the same compute", EQUAL_TOKENS, "GSPO", "GRPO", +1),
    Claim("GSPO ends better", "accuracy after", "GSPO", "GRPO", +1),
    Claim("... also against GRPO with GSPO's clip range (control)", "accuracy after", "GSPO", "GRPO tight", +1),
    Claim("GSPO's largest gradients are smaller", "largest gradient norm", "GSPO", "GRPO", -1),
    Claim("... also against the control", "largest gradient norm", "GSPO", "GRPO tight", -1),
    Claim("GSPO's reward falls back less", "fall of the reward", "GSPO", "GRPO", -1),
    Claim("a mixture of experts is stable without replay: GSPO as good as GRPO + R2", "accuracy after", "GSPO",
          "GRPO + R2", +1),
    Claim("GRPO needs Routing Replay there", "accuracy after", "GRPO + R2", "GRPO", +1),
    Claim("GSPO-token is GSPO (one advantage per sequence)", "accuracy after", "GSPO-token", "GSPO", 0),
    Claim("GSPO tolerates old log-probabilities in bf16", "accuracy after", "GSPO, bf16 old", "GSPO", 0),
    Claim("... and GRPO (of which the paper says nothing)", "accuracy after", "GRPO, bf16 old", "GRPO", 0),
)  # fmt: skip
"""``direction``: +1 higher, -1 lower, 0 the same, of ``one`` against ``other``."""


def claims(grid: Grid, results: Results) -> list[str]:
    """Two tables: each claim in a line, and each claim in each regime."""
    summary, rows = [], []
    for claim in CLAIMS:
        verdicts: list[str] = []
        means: list[float] = []
        for regime in regimes(grid):
            found = pairs(grid, results, regime, claim.one, claim.other, claim.number(grid, results, regime))
            if found:
                verdicts.append(_verdict(claim, found))
                means.append(statistics.mean(a - b for a, b in found))
                rows.append(f"| {claim.text} | {words(regime)} | {_seen(claim, found)} | {verdicts[-1]} |")
        if verdicts:
            what = f"{claim.column}: {claim.one} less {claim.other}"
            summary.append(f"| {claim.text} | {what} | {_range(means)} | {_counted(verdicts)} |")
    if not rows:
        return []
    return [
        "## The paper's claims", "",
        "In how many regimes the difference between two methods has the claimed sign: in every seed, in some, in none, "
        "or there is no difference. The controls are ours, not the paper's.", "",
        "| claim | measured by | mean difference, over regimes | so | mixed | the opposite | no difference |",
        "|---|---|---|---|---|---|---|", *summary, "",
        "### In every regime", "",
        "| claim | regime | seen: mean over seeds | difference [95% bootstrap over seeds] |  |",
        "|---|---|---|---|---|",
        *rows, "",
        "Five seeds or fewer support no claim of a difference (`gspo compare` asks for eight): read signs, not stars.",
        "",
    ]  # fmt: skip


SO, OPPOSITE, MIXED, NONE = "so in every seed", "the opposite in every seed", "mixed", "no difference in any seed"


def _verdict(claim: Claim, found: Sequence[tuple[float, float]]) -> str:
    higher, lower = sum(a > b for a, b in found), sum(a < b for a, b in found)
    if not higher + lower:
        return NONE if claim.direction else SO
    so = {1: higher, -1: lower, 0: len(found) - higher - lower}[claim.direction]
    against = {1: lower, -1: higher, 0: max(higher, lower)}[claim.direction]
    if len(found) in (so, against):
        return SO if so == len(found) else OPPOSITE if claim.direction else "higher" if higher else "lower"
    return f"{MIXED}: {claim.one} higher in {higher}, lower in {lower} of {len(found)} seeds"


def _counted(verdicts: Sequence[str]) -> str:
    so, against, none = (verdicts.count(kind) for kind in (SO, OPPOSITE, NONE))
    return f"{so} | {len(verdicts) - so - against - none} | {against} | {none}"


def _range(means: Sequence[float]) -> str:
    return f"{min(means):+.3g}" if len(means) == 1 else f"{min(means):+.3g} to {max(means):+.3g}"


def _seen(claim: Claim, found: Sequence[tuple[float, float]]) -> str:
    first, second = (statistics.mean(values) for values in zip(*found, strict=True))
    factor = f", {first / second:.3g} x" if second > 0 and claim.column == "clipped tokens" else ""
    difference = paired_difference([b for _, b in found], [a for a, _ in found])
    interval = f" [{difference.low:+.3g}, {difference.high:+.3g}]" if len(found) > 1 else ""
    seen = f"{claim.column}: {claim.one} {first:.3g}, {claim.other} {second:.3g}{factor}"
    return f"{seen} | {difference.mean:+.3g}{interval}"


def much_is_clipped(grid: Grid, results: Results) -> list[str]:
    """Whether runs learn although most of their tokens are clipped."""
    rows = []
    for regime in regimes(grid):
        for method in dict.fromkeys(c.method for c in grid.cells() if c.regime == regime):
            own = [results[c.name] for c in grid.cells() if (c.regime, c.method) == (regime, method)
                   and c.name in results]  # fmt: skip
            shares = [share for r in own if (share := COLUMNS["clipped tokens"](r)) is not None]
            if not shares or statistics.mean(shares) < HEAVY:
                continue
            better = sum(r["accuracy_after"] > r.get("accuracy_before", 1.0) for r in own)
            gains = ", ".join(f"{r.get('accuracy_before', float('nan')):.2f} → {r['accuracy_after']:.2f}" for r in own)
            low, high = min(shares), max(shares)
            rows.append(f"| {method} | {words(regime)} | {low:.2f} to {high:.2f} | {better} of {len(own)} | {gains} |")
    if not rows:
        return []
    return [
        "## Learning with most tokens clipped", "",
        f"Every method and regime that clips more than {HEAVY:.0%} of its tokens (mean over all updates but the first "
        "of an iteration): how many seeds end better than they began, and by how much.", "",
        "| method | regime | clipped tokens, by seed | better than before | held-out accuracy, seed by seed |",
        "|---|---|---|---|---|", *rows, "",
    ]  # fmt: skip


def experts(grid: Grid, results: Results) -> list[str]:
    """Which share of routed choices one update and one iteration change."""
    rows = []
    for regime in regimes(grid):
        for method in ("GSPO", "GRPO", "GRPO + R2"):
            own = [results[c.name] for c in grid.cells() if (c.regime, c.method) == (regime, method)
                   and c.name in results]  # fmt: skip
            cells = []
            for column in ("experts: one update", "experts: iteration"):
                values = [v for r in own if (v := COLUMNS[column](r)) is not None]
                if values:
                    cells.append(f"{statistics.mean(values):.1%} ({min(values):.1%} to {max(values):.1%})")
            if len(cells) == 2:
                rows.append(f"| {method} | {words(regime)} | {' | '.join(cells)} |")
    if not rows:
        return []
    return [
        "## Expert choices that an update changes", "",
        "Share of (response token, layer) choices whose set of experts is not the old policy's; mean over seeds "
        "(least to most). The paper sees about 10% after one update, on 48 layers of 128 experts.", "",
        "| method | regime | after one update | after an iteration |", "|---|---|---|---|", *rows, "",
    ]  # fmt: skip
