"""The error of a cell's steps, and how large rounding may make it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.updates.cells import Cell
from tests.updates.reference import Critic, Step, Swap, Update, updates
from tests.updates.runs_of_cells import Outcome, fitted

__all__ = ["DTYPES", "Error", "errors", "measured"]

DTYPES = {"float32": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FACTOR = {"float32": 16.0, "bf16-mixed": 2.0, "16-mixed": 2.0}
"""A step may differ by so many times what it does to the float64 step to round every product of the model. Products of
short formats are added up in float32; in float32 every addition rounds, too, and so do norms and attention. One of 43
runs differs by 14 times it on an Intel Xeon (a critic's third step), none by more than 8 on an AMD EPYC."""
TIE = 4.0
"""A router may choose either of two experts whose log-scores differ by so many times the noise of a score or less."""
TIES = 24
"""Most of them that are tried."""
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
    """Compare the steps of a run, update by update, the critic's behind the policy's.

    A router in a short format may take the next expert for a token where two have almost the same score. Where that may
    be why a step is out of bounds, float64 takes those choices that bring it nearest to the run; bounds stay.
    """
    exact = updates(cell, outcome)
    rounded = updates(cell, outcome, DTYPES[cell.precision])
    shifted = [] if cell.precision == "float32" else _over_the_bounds(cell, outcome, exact, rounded)
    compared = []
    for part, number, step in _steps(exact):
        _, after = _around(outcome, part, number)
        size = _norm(step)
        assert size > 0
        values = (
            _error(outcome, part, number, step),
            _distance(getattr(rounded[number], part), step) / size,
            _norm({name: after[name].double() for name in step}) * 2**-24 / size,
            max((_distance(getattr(other[number], part), step) for other in shifted), default=0.0) / size,
        )
        factor = OF_MUON if part == "policy" and cell.optimizer == "Muon" else FACTOR[cell.precision]
        compared.append(Error(f"{part} {number + 1}", *values, factor))
    if all(error.error <= error.bound for error in compared):
        return compared
    nearest = _with_choices_of_the_run(cell, outcome, exact, _ties(exact, rounded))
    return [
        dataclasses.replace(error, error=_error(outcome, *step))
        for error, step in zip(compared, _steps(nearest), strict=True)
    ]


def _steps(computed: list[Update]) -> Iterator[tuple[str, int, Step]]:
    """Part, number of its update and step."""
    for number, update in enumerate(computed):
        for part, step in (("policy", update.policy), ("critic", update.critic)):
            if step:
                yield part, number, step


def _error(outcome: Outcome, part: str, number: int, step: Step) -> float:
    """Distance of the run's step, relative to the norm of float64's."""
    before, after = _around(outcome, part, number)
    change = {name: after[name].double() - before[name].double() for name in step}
    return _distance(change, step) / _norm(step)


def _ties(exact: list[Update], rounded: list[Update]) -> list[Swap]:
    """Choices that rounding may decide either way, the closest ones first."""
    found: list[tuple[float, Swap]] = []
    for one, other in zip(exact, rounded, strict=True):
        for number, routing in one.routing.items():
            layers = zip(routing.scores, other.routing[number].scores, routing.experts, strict=True)
            for layer, (scores, noisy, experts) in enumerate(layers):
                noise = float((scores - noisy).square().mean().sqrt())
                best = scores.topk(experts.shape[1] + 1).values
                margins = best[:, -2] - best[:, -1]
                for token in (margins < TIE * noise).nonzero().flatten().tolist():
                    found.append((float(margins[token]), (number, layer, token)))
    return [swap for _, swap in sorted(set(found))[:TIES]]


def _with_choices_of_the_run(cell: Cell, outcome: Outcome, exact: list[Update], ties: list[Swap]) -> list[Update]:
    """Float64's updates with each tie decided as brings the steps nearer to the run's."""
    swaps: list[Swap] = []
    nearest = exact
    for swap in ties:
        tried = updates(cell, outcome, swaps=[*swaps, swap])
        if _far(outcome, tried) < _far(outcome, nearest):
            swaps.append(swap)
            nearest = tried
    return nearest


def _far(outcome: Outcome, computed: list[Update]) -> float:
    return sum(_error(outcome, *step) for step in _steps(computed))


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
