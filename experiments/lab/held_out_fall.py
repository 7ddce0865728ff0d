"""How often does ``held_out_fall`` warn? ``python -m experiments.lab.held_out_fall``: a table in a minute.

Evaluations are simulated: one answer a prompt, right by a chance that is drawn once a prompt from Beta(a, a). The
policy does not change, or in the last evaluation every chance is lower by ``drop`` (at least 0). Each evaluation is
compared with the best one before it, by the error of the paired difference and by that of two independent means.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PROMPTS, EVALUATIONS, RUNS, SEED = 512, 20, 1000, 1
CASES = ((1.0, 0.0), (1.0, 0.1), (0.2, 0.0), (0.2, 0.1))
"""Beta's parameter, and the drop of the last evaluation."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Share of runs that warned in any evaluation, by the rule."""

    paired_4: float
    paired_3: float
    independent_3: float


def simulate(
    spread: float, drop: float, prompts: int = PROMPTS, evaluations: int = EVALUATIONS, runs: int = RUNS
) -> Warned:
    """Simulate runs.

    Args:
        spread: both parameters of the Beta distribution of the prompts' chances; below 1, most are near 0 or 1.
        drop: taken from every chance in the last evaluation; 0 to 1.
        prompts: of an evaluation.
        evaluations: of a run.
        runs: that are simulated.
    """
    random = np.random.default_rng(SEED)
    chances = random.beta(spread, spread, (runs, prompts)).astype(np.float32)
    best = (random.random((runs, prompts), dtype=np.float32) < chances).astype(np.int8)
    warned = np.zeros((3, runs), dtype=bool)
    for number in range(1, evaluations):
        now = np.clip(chances - drop, 0, 1) if number == evaluations - 1 else chances
        right = (random.random((runs, prompts), dtype=np.float32) < now).astype(np.int8)
        falls = best.mean(1) - right.mean(1)
        paired = (right - best).std(1, ddof=1) / np.sqrt(prompts)
        independent = np.hypot(best.std(1, ddof=1), right.std(1, ddof=1)) / np.sqrt(prompts)
        warned |= np.stack([falls > 4 * paired, falls > 3 * paired, falls > 3 * independent])
        better = falls <= 0
        best[better] = right[better]
    return Warned(*(float(share) for share in warned.mean(1)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser("experiments.lab.held_out_fall", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="number of runs that are simulated a line")
    runs = parser.parse_args(argv).runs
    print(f"{PROMPTS} prompts, {EVALUATIONS} evaluations, {runs} runs, seed {SEED}: share of runs that warn\n")
    print("| chances | drop in the last evaluation | 4 paired errors | 3 paired errors | 3 independent errors |")
    print("|---|---|---|---|---|")
    for spread, drop in CASES:
        warned = simulate(spread, drop, runs=runs)
        shares = (warned.paired_4, warned.paired_3, warned.independent_3)
        print(f"| Beta({spread}, {spread}) | {drop} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
