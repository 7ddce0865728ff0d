"""Conversion of returned values to scores; errors name the reward and the sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import SupportsFloat, SupportsIndex

from gspo_lightning.core.errors import UserError, is_finite
from gspo_lightning.core.tolerance import is_residue
from gspo_lightning.rewards.types import Sample, Score, ScoreStatus

LARGEST = 1e38
"""Largest absolute reward: differences of two are float32 numbers, as advantages are."""
_SINGLE = ("float32", "bfloat16", "float16")
NONE = "the reward returned None"
"""Detail of a *missing* score when the reward returned None."""


def summed(terms: Iterable[float]) -> float:
    """Return the sum of weighted rewards; 0 for terms that cancel, and not what rounding leaves of them.

    >>> summed([0.3, -0.1, -0.1, -0.1]), summed([0.1, 0.2]), summed([])
    (0.0, 0.30000000000000004, 0.0)
    """
    values = list(terms)
    total = float(sum(values))
    return 0.0 if is_residue(total, max(map(abs, values), default=0.0)) else total


def is_single(value: object) -> bool:
    """True for a number of torch or NumPy with the precision of float32, or less; a Python float has that of float64.

    >>> is_single(0.1), is_single(1)
    (False, False)
    """
    return str(getattr(value, "dtype", "")).removeprefix("torch.") in _SINGLE


def to_score(value: object, reward: str, sample_id: str) -> Score:
    """Convert a returned value to a :class:`Score`.

    >>> to_score(True, "Brevity", "7").reward
    1.0

    Raises:
        UserError: the value is not a finite number; the message names the reward and the sample.
    """
    if value is None:
        return Score.missing(NONE)
    if isinstance(value, Score):
        if value.reward is None:
            not_applicable = value.status is ScoreStatus.NOT_APPLICABLE
            return value if not_applicable else replace(value, status=ScoreStatus.MISSING)
        _check_steps(value.steps, reward, sample_id)
        single = value.single or is_single(value.reward)
        number = _finite(value.reward, reward, sample_id)
        return replace(value, reward=number, status=ScoreStatus(value.status), single=single)
    return Score(_finite(value, reward, sample_id), single=is_single(value))


def check_batch(values: object, reward: str, samples: Sequence[Sample]) -> list[Score]:
    """Convert the values returned by ``score_batch`` to scores.

    Raises:
        UserError: not one value per sample, or a value that is not a reward.
    """
    first = samples[0].id if samples else "-"
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise UserError(
            f"rewards.{reward}", f"sample {first}: returned {_show(values)}; it must return a list, one value a sample"
        )
    items = list(values)
    if len(items) != len(samples):
        raise UserError(
            f"rewards.{reward}",
            f"returned {len(items)} values for {len(samples)} samples (the first is {first})",
            fix="return exactly one value per completion, in order; None if there is no reward",
        )
    return [to_score(v, reward, s.id) for v, s in zip(items, samples, strict=True)]


def _check_steps(steps: Sequence[tuple[int, float]], reward: str, sample_id: str) -> None:
    last_end = 0
    for end, score in steps:
        if not (isinstance(end, int) and end > last_end and is_finite(score)):
            raise UserError(
                f"rewards.{reward}",
                f"sample {sample_id}: returned steps whose ends do not rise from 1, or whose scores are not finite",
                fix="give (end, score) of each step: end is the place behind it, in characters of the completion",
            )
        last_end = end


def _finite(value: object, reward: str, sample_id: str) -> float:
    try:
        if not isinstance(value, SupportsFloat | SupportsIndex):  # numpy and torch scalars are, text is not
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(
            f"rewards.{reward}",
            f"sample {sample_id}: returned {_show(value)}, which is not a number",
            fix="return a finite number, or None if there is no reward",
        ) from error
    if not abs(number) <= LARGEST:
        rule = f"at most {LARGEST:g}" if math.isfinite(number) else "finite"
        raise UserError(
            f"rewards.{reward}",
            f"sample {sample_id}: returned {number}, but a reward must be {rule}",
            fix="return a finite number, or None if there is no reward",
        )
    return number


def _show(value: object) -> str:
    text = repr(value)
    return f"{text[:77]}..." if len(text) > 80 else text
