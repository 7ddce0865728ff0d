"""``python -m experiments.smollm2.ratios NAME=RUN ...``: clipping, s_i by length and gradient norms of runs.

For runs with long.yaml. Prints tables in Markdown: a line per run, and one per range of lengths. The first update of an
iteration is on-policy, so that every ratio is 1; lengths are counted over the others.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.report.read import read_run
from gspo_lightning.report.tokens import TOKENS

RANGES = ((1, 63), (64, 95), (96, 128))
"""Lengths of responses, in tokens."""


@dataclass(frozen=True, slots=True)
class Length:
    """Sequences of a range of lengths in off-policy updates."""

    sequences: int
    spread: float
    """Root mean square of log s_i, nats per token."""
    summed: float
    """Root mean square of T log s_i, nats: how far the probability of a whole response moved."""
    clipped: float
    """Mean share of a response's tokens that are clipped."""


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    runs: dict[str, list[Path]] = defaultdict(list)
    for word in argv:
        name, _, folder = word.partition("=")
        runs[name].append(Path(folder))
    print("| run | clipped tokens, off-policy | gradient norm, on-policy | off-policy | tokens of a response |")
    print("|---|---|---|---|---|")
    for name, folders in runs.items():
        for folder in folders:
            print(f"| {name} | {' | '.join(f'{value:.3g}' for value in updates(folder))} |")
    print("\n| run | tokens | sequences | rms of log s_i | rms of T log s_i | clipped |\n|---|---|---|---|---|---|")
    for name, folders in runs.items():
        rows = [row for folder in folders for row in read(folder)]
        for (low, high), found in by_length(rows).items():
            values = f"{found.spread:.2g} | {found.summed:.2g} | {found.clipped:.0%}"
            print(f"| {name} | {low} to {high} | {found.sequences} | {values} |")
    return 0


def updates(folder: Path) -> tuple[float, float, float, float]:
    """Return clipped tokens off-policy, the gradient norm on-policy and off-policy, and the length of responses."""
    run, per_iteration = read_run(folder), minibatches(folder)

    def values(tag: str, on_policy: bool) -> list[float]:
        series = run.scalars[tag]
        points = zip(series.steps, series.values, strict=True)
        return [float(value) for step, value in points if is_first(int(step), per_iteration) is on_policy]

    clipped, length = values("clip/tokens", False), run.scalars["response/length"].values
    on, off = (values("optim/gradient_norm", kind) for kind in (True, False))
    return mean(clipped), mean(on), mean(off), float(mean(length))


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded rows of a run's off-policy updates."""
    rows = [json.loads(line) for line in (folder / TOKENS).read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if not is_first(row["update"], minibatches(folder))]


def minibatches(folder: Path) -> int:
    """Return the number of updates of an iteration of a run."""
    config = load_yaml((folder / "config.yaml").read_text(encoding="utf-8"))
    return int(config["data"]["minibatches_per_rollout"])


def is_first(update: int, per_iteration: int) -> bool:
    """True for the first update of an iteration; updates count from 1."""
    return (update - 1) % per_iteration == 0


def by_length(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], Length]:
    """Return range of lengths -> its sequences; ranges without any are left out.

    >>> by_length([{"length": 64, "log_s": 0.003, "clipped": 1.0}, {"length": 80, "log_s": -0.004, "clipped": 0.0}])
    {(64, 95): Length(sequences=2, spread=0.0035..., summed=0.26..., clipped=0.5)}
    """
    kept = [row for row in rows if row["log_s"] is not None]
    parts = {(low, high): [row for row in kept if low <= row["length"] <= high] for low, high in RANGES}
    return {
        limits: Length(
            len(own),
            mean(row["log_s"] ** 2 for row in own) ** 0.5,
            mean((row["length"] * row["log_s"]) ** 2 for row in own) ** 0.5,
            mean(row["clipped"] for row in own),
        )
        for limits, own in parts.items()
        if own
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
