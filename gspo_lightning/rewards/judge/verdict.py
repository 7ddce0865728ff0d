"""Parsing of verdicts from a judge's replies; an unreadable reply is an error, never a low score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rewards.judge.asking import CHOICES
from gspo_lightning.rewards.logic.lenient import last_objects

__all__ = ["UnreadableError", "read_verdict", "weighted"]

Verdict = dict[str, float]
_SHOWN = 120


class UnreadableError(Exception):
    """A reply without a readable verdict, or with several that differ."""


def read_verdict(choice: Mapping[str, Any], check: str, criteria: Sequence[str], scale: int | None) -> Verdict:
    """Read a verdict from the choice of a reply: criterion -> value in [0, 1].

    Args:
        choice: ``{"message": {"content": text}, "finish_reason": ...}``.
        check: the code that a verdict must repeat.
        criteria: of the rubric; a verdict must have each of them, and no other.
        scale: the best score; None for a comparison.

    Raises:
        UnreadableError: no verdict, one with other criteria or values, or several that differ.
    """
    text = answer_text(choice["message"].get("content")) or ""
    said = [found for found in last_objects(text) if found.get("check") == check]
    if not said:
        cut = ", cut at the limit of tokens" if choice.get("finish_reason") == "length" else ""
        raise UnreadableError(f"no verdict with its code in the judge's reply{cut}: {text[:_SHOWN]!r}")
    verdicts = [_values(found.get("verdict"), criteria, scale) for found in said]
    if any(verdict != verdicts[0] for verdict in verdicts):
        raise UnreadableError("several verdicts that differ in the judge's reply")
    return verdicts[0]


def weighted(verdict: Verdict, weights: Mapping[str, float]) -> float:
    """Return the weighted mean of the criteria.

    >>> weighted({"right": 1.0, "short": 0.5}, {"right": 3.0, "short": 1.0})
    0.875
    """
    return sum(weights[name] * value for name, value in verdict.items()) / sum(weights.values())


def _values(said: object, criteria: Sequence[str], scale: int | None) -> Verdict:
    if not isinstance(said, Mapping) or set(said) != set(criteria):
        raise UnreadableError(f"a verdict with other criteria than {', '.join(criteria)}: {str(said)[:_SHOWN]}")
    return {name: _value(name, said[name], scale) for name in criteria}


def _value(name: str, value: object, scale: int | None) -> float:
    if scale is None:
        if isinstance(value, str) and value in CHOICES:
            return CHOICES[value]
        raise UnreadableError(f"{name} is {value!r}, none of {', '.join(CHOICES)}")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= scale:
        return value / scale
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    raise UnreadableError(f"{name} is {shown}, no number from 0 to {scale}")
