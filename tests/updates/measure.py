"""The error of a cell's steps, and how large rounding may make it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.updates.cells import Cell
from tests.updates.reference import Critic, Step, Update, updates
from tests.updates.runs_of_cells import Outcome, fitted

__all__ = ["DTYPES", "Error", "errors", "measured"]

DTYPES = {"float32": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FACTOR = {"float32": 8.0, "bf16-mixed": 2.0, "16-mixed": 2.0}
"""A step may differ by so many times what it does to the float64 step to round every product of the model. Products of
short formats are added up in float32; in float32 every addition rounds, too, and so do norms and attention."""
OF_MUON = 2.0
"""The same for Muon, whose own products are in bfloat16."""


@dataclass(frozen=True)
class Error:
    """Of one step, relative to its norm: the distance of the run's from float64's, and what rounding explains."""

    name: str
    error: float
    rounding: float
    stored: float
    """Of weights in float32, which hold no smaller change."""
    crossings: float = 0.0
    """Of ratios that rounding may move over a bound of the clip range."""
    factor: float = FACTOR["float32"]

    @property
    def bound(self) -> float:
        """Largest error that counts as rounding."""
        return self.factor * self.rounding + self.stored + self.crossings


def measured(cell: Cell, root: Path) -> list[Error]:
    """Run a cell and compare its steps."""
    return errors(cell, fitted(cell, root))


def errors(cell: Cell, outcome: Outcome) -> list[Error]:
    """Compare the steps of a run, update by update, the critic's behind the policy's."""
    exact = updates(cell, outcome)
    rounded = updates(cell, outcome, DTYPES[cell.precision])
    shifted = [] if cell.precision == "float32" else _over_the_bounds(cell, outcome, exact, rounded)
    compared = []
    for number, update in enumerate(exact):
        for part, step in (("policy", update.policy), ("critic", update.critic)):
            if not step:
                continue
            before, after = _around(outcome, part, number)
            size = _norm(step)
            assert size > 0
            change = {name: after[name].double() - before[name].double() for name in step}
            values = (
                _distance(change, step),
                _distance(getattr(rounded[number], part), step),
                _norm({name: after[name].double() for name in step}) * 2**-24,
                max((_distance(getattr(other[number], part), step) for other in shifted), default=0.0),
            )
            factor = OF_MUON if part == "policy" and cell.optimizer == "Muon" else FACTOR[cell.precision]
            compared.append(Error(f"{part} {number + 1}", *(value / size for value in values), factor))
    return compared


def _over_the_bounds(cell: Cell, outcome: Outcome, exact: list[Update], rounded: list[Update]) -> list[list[Update]]:
    """The updates with ratios a little larger, and a little smaller: a ratio beside the clip range may leave it.

    The shift is twice the root mean square of what rounding does to the log-ratios of an update.
    """
    noise = [
        2 * float((one.log_ratios - other.log_ratios).square().mean().sqrt())
        for one, other in zip(exact, rounded, strict=True)
    ]
    return [updates(cell, outcome, shifts=[sign * shift for shift in noise]) for sign in (1.0, -1.0)]


def _distance(step: Step, other: Step) -> float:
    return _norm({name: step[name] - other[name] for name in other})


def _around(outcome: Outcome, part: str, number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if part == "policy":
        return outcome.weights[number], outcome.weights[number + 1]
    return Critic.weights(outcome, number), Critic.weights(outcome, number + 1)


def _norm(step: Step) -> float:
    return math.sqrt(sum(float(change.square().sum()) for change in step.values()))
