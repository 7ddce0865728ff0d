"""What is read off one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gspo_lightning.commands.compare.stats import after_an_update
from gspo_lightning.report.run import Run

__all__ = ["MEASURES", "Measure", "reward_for_tokens"]

GOAL = 0.9
FALL = 0.2


@dataclass(frozen=True, slots=True)
class Measure:
    """One number per run, ``of`` it and the tokens that every run of its condition has trained on.

    ``form`` prints it, ``says`` explains it to a reader.
    """

    title: str
    form: str
    says: str
    of: Callable[[Run, float], float | None]


def _whole(of: Callable[[Run], float | None]) -> Callable[[Run, float], float | None]:
    """A measure of the whole run."""
    return lambda run, _: of(run)


def _accuracy(run: Run) -> float | None:
    return run.accuracy()[1]


def _learned(run: Run) -> float | None:
    """1 if held-out accuracy ended at least half-way between its start and 1."""
    before, after = run.accuracy()
    return None if before is None or after is None else float(run.finished and after >= (1 + before) / 2)


def _reward(run: Run) -> float | None:
    series = run.get("reward/mean")
    return None if series is None else float(series.values.mean())


def _spike(run: Run) -> float | None:
    series = run.get("optim/gradient_norm")
    positive = None if series is None else series.values[series.values > 0]
    return None if positive is None or not len(positive) else float(positive.max() / np.median(positive))


def _collapsed(run: Run) -> float | None:
    """1 if the reward ended ``FALL`` below the best that two updates in a row had, or the run stopped early."""
    series = run.get("reward/mean")
    if series is None:
        return None
    both = (series.values[1:] + series.values[:-1]) / 2
    return float(not run.finished or (len(both) > 0 and both.max() - both[-1] > FALL))


def _updates_to_goal(run: Run) -> float | None:
    series = run.get("val/accuracy")
    reached = None if series is None else series.steps[series.values >= GOAL]
    return None if reached is None or not len(reached) else float(reached[0])


def reward_for_tokens(run: Run, budget: float) -> float | None:
    """Mean reward over the first ``budget`` trained tokens; None where the run has trained on fewer."""
    reward, tokens = run.get("reward/mean"), run.get("data/tokens_per_update")
    if reward is None or tokens is None:
        return None
    ends = np.cumsum(tokens.values)
    if ends[-1] < budget:
        return None
    spent = np.diff(np.minimum(ends, budget), prepend=0.0)  # of every update
    iteration = np.searchsorted(reward.steps, tokens.steps, side="right") - 1  # whose reward an update belongs to
    return float(np.dot(spent, reward.values[np.clip(iteration, 0, None)]) / budget)


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("Held-out accuracy at the end", "{:.3f}", "greedy, at the last evaluation", _whole(_accuracy)),
    "learned": Measure(
        "Learned",
        "{:.2f}",
        "share of runs whose held-out accuracy ended at least half-way between its start and 1",
        _whole(_learned),
    ),
    "reward": Measure(
        "Mean reward over the run", "{:.3f}", "of all sampled responses, how fast it climbs", _whole(_reward)
    ),
    "reward_for_tokens": Measure(
        "Mean reward for equal tokens",
        "{:.3f}",
        "over as many trained tokens as every run of the column has: longer answers spend them in fewer iterations",
        reward_for_tokens,
    ),
    "to_90": Measure(
        "Updates to 90 %",
        "{:.0f}",
        "before the first evaluation with so much held-out accuracy",
        _whole(_updates_to_goal),
    ),
    "clipped": Measure(
        "Clipped tokens",
        "{:.4f}",
        "mean over the updates after the first of an iteration",
        _whole(after_an_update("clip/tokens")),
    ),
    "ratio_std": Measure("Std of ratios", "{:.4f}", "mean over the same updates", _whole(after_an_update("ratio/std"))),
    "spike": Measure("Gradient spike", "{:.1f}", "largest gradient norm over the median one", _whole(_spike)),
    "collapsed": Measure(
        "Collapsed",
        "{:.2f}",
        f"share of runs whose reward ended {FALL:g} below its best, or that stopped",
        _whole(_collapsed),
    ),
}
