"""Does the collapse watch warn before the reward falls? ``python -m experiments.lab.early_warning --root runs/lab``.

Replays the watch over the recorded scalars of runs of the lab, prints the table of docs/collapse.md and lists misses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.lab.grid import GRIDS, Grid
from experiments.lab.measures import FALL
from experiments.lab.results import read
from gspo_lightning.report.run import Run
from gspo_lightning.training.callbacks.collapse import SIGNATURES, Watch

__all__ = ["Replayed", "first_warning", "replay", "reward_fall", "table"]

EARLY = ("sample_size_fall", "ratio_tails", "drift_without_reward")
"""Signatures that are meant to come before a fall of the reward."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded run: the update at which its reward has fallen, and the first alarm of each signature."""

    name: str
    fell: int | None
    """First update of the first iteration whose reward belongs to the fall; None if it did not fall."""
    warned: dict[str, int]
    learned: bool = True
    """True if held-out accuracy ended above its start; a run that neither fell nor learned is not healthy."""

    def warning(self, names: Iterable[str]) -> int | None:
        """Return the first alarm of these signatures."""
        return min((self.warned[name] for name in names if name in self.warned), default=None)


def reward_fall(rewards: Sequence[float]) -> int | None:
    """Return the first iteration of a fall that lasts to the end; None if there is none.

    The mean over two successive iterations stays 0.2 below the best one so far.

    >>> reward_fall([0.4, 0.8, 0.8, 0.7, 0.3, 0.2, 0.1])
    4
    >>> reward_fall([0.4, 0.8, 0.8, 0.3, 0.2, 0.8, 0.8]) is None
    True
    """
    both = (np.array(rewards[1:]) + np.array(rewards[:-1])) / 2
    if not len(both):
        return None
    below = np.maximum.accumulate(both) - both > FALL
    if not below[-1]:
        return None
    return int(np.flatnonzero(~below)[-1]) + 2  # the later of the two iterations


def first_warning(run: Run, per_iteration: int) -> dict[str, int]:
    """Return signature -> update of its first alarm, as a watch would raise it on these scalars."""
    watch, found = Watch(kind() for kind in SIGNATURES.values()), dict[str, int]()
    for signature in watch.signatures:
        if hasattr(signature, "prompts"):
            signature.prompts = int(run.setting("data", "prompts_per_rollout"))
    at: dict[int, dict[str, float]] = {}
    for tag, series in run.scalars.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            at.setdefault(step, {})[tag] = value
    steps = run.scalars["data/mini_batch"].steps.tolist()
    for number, step in enumerate(steps, 1):
        look = {tag: value for tag, value in at[step].items() if not tag.startswith(("val/", "collapse/"))}
        for alarm in watch.see(look, number, last=number % per_iteration == 0):
            found.setdefault(alarm.signature, number)
    return found


def replay(run: Run, name: str) -> Replayed:
    """Replay one run."""
    per_iteration = int(run.setting("data", "minibatches_per_rollout"))
    rewards = run.scalars["reward/mean"].values[::per_iteration].tolist()
    fell = reward_fall(rewards)
    before, after = run.accuracy()
    learned = before is not None and after is not None and after > before
    first = None if fell is None else fell * per_iteration + 1
    return Replayed(name, first, first_warning(run, per_iteration), learned)


def table(runs: Sequence[Replayed]) -> str:
    """Return the table in Markdown."""
    collapsed = [r for r in runs if r.fell is not None]
    healthy = [r for r in runs if r.fell is None and r.learned]
    lines = [
        f"| signature | of {len(collapsed)} collapses: warns before the fall | median updates before it "
        f"| of {len(healthy)} healthy runs: warns |",
        "|---|---|---|---|",
    ]
    rows = {f"`{name}`": (name,) for name in EARLY} | {
        "the three": EARLY, "`ratio_explosion`": ("ratio_explosion",), "`reward_collapse`": ("reward_collapse",),
        "any of the watch": tuple(SIGNATURES),
    }  # fmt: skip
    for title, names in rows.items():
        lead = [r.fell - w for r in collapsed if r.fell is not None and (w := r.warning(names)) is not None]
        before = [updates for updates in lead if updates > 0]
        false = sum(r.warning(names) is not None for r in healthy)
        shown = f"{np.median(before):g}" if before else "-"
        lines.append(f"| {title} | {len(before)} | {shown} | {false} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Print the table of each grid."""
    parser = argparse.ArgumentParser("experiments.lab.early_warning", description=__doc__)
    parser.add_argument("grids", nargs="*", default=["collapses"])
    parser.add_argument("--root", type=Path, default=Path("runs/lab"))
    options = parser.parse_args(list(argv))
    for name in options.grids:
        grid = Grid.read(GRIDS / f"{name}.yaml")
        found = read(grid, options.root / name).runs
        runs = [
            replay(run, f"{condition}, {variant}, seed {seed}")
            for condition, variants in found.items()
            for variant, seeds in variants.items()
            for seed, run in seeds.items()
        ]
        neither = sum(run.fell is None and not run.learned for run in runs)
        print(f"{name} ({len(runs)} runs, of which {neither} neither fell nor learned)\n\n{table(runs)}\n")
        for run in runs:
            warning = run.warning(EARLY)
            if (warning is None or warning >= run.fell) if run.fell is not None else warning is not None:
                print(f"* {run.name}: fell {run.fell}, warned {run.warned}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
