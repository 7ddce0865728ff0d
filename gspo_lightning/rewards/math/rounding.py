r"""Roundings that a prompt asks for: "to two decimal places" makes 3.14 an answer to a record of ``\frac{22}{7}``."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.quantities import measured
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.units import PERCENT, Quantity

_EXACT = re.compile(r"\bexact", re.IGNORECASE)
_COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNT = rf"(\d{{1,2}}|{'|'.join(_COUNTS)})"
_PLACES = re.compile(rf"\bto\s+{_COUNT}\s+(?:decimal(?:s\b|\s+(?:places?|digits?))|d\.?p\b)", re.IGNORECASE)
_FIGURES = re.compile(
    rf"\bto\s+{_COUNT}\s+(?:significant\s+(?:figures?|digits?)|sig\.?\s*figs?\b|s\.?f\b)", re.IGNORECASE
)
_NEAREST = re.compile(
    r"\bnearest\s+(tenth|hundredth|thousandth|ten[- ]thousandth|cent|whole|integer|ten|hundred|thousand|million)\b"
    r"(?![- ](?:thousand|million|billion)s?\b)",
    re.IGNORECASE,
)
_STEPS = {
    "tenth": 1, "hundredth": 2, "thousandth": 3, "ten-thousandth": 4, "cent": 2, "whole": 0, "integer": 0, "ten": -1,
    "hundred": -2, "thousand": -3, "million": -6,
}  # fmt: skip
_LONGEST = 100


def rounded_as_asked(gold: Quantity, given: Quantity, question: Question) -> bool:
    r"""True if the prompt asks for a rounding, the record has an exact value, and the answer is that value rounded.

    >>> task = Question("Round to two decimal places.")
    >>> [rounded_as_asked(Quantity(r"\frac{22}{7}"), Quantity(text), task) for text in ("3.14", "3.15", "3.1")]
    [True, False, False]
    """
    rounding = _asked(question.text)
    if rounding is None or len(gold.value) > _LONGEST:
        return False
    answer = literal(given.value)
    if answer is None:
        return False
    pair = measured(gold, given, question.unit)
    if pair.excluded or not pair.same_scale or (gold.unit == PERCENT) != (given.unit == PERCENT):
        return False
    value = _exact(gold.value)
    return value is not None and answer.value == _rounded(value, *rounding)


def _exact(text: str) -> Fraction | None:
    """Return the value of a text that is neither an integer nor a decimal, which are rounded already."""
    number = literal(text)
    if number is not None:
        return None if number.decimal or number.value.denominator == 1 else number.value
    return library.constant(text)


@lru_cache(maxsize=256)  # the samples of a group follow each other
def _asked(prompt: str) -> tuple[str, int] | None:
    """Return ``places`` or ``figures`` and their number; None if a prompt asks for neither, or for several."""
    if _EXACT.search(prompt):
        return None
    requests = [("places", _number(match[1])) for match in _PLACES.finditer(prompt)]
    requests += [("figures", _number(match[1])) for match in _FIGURES.finditer(prompt)]
    requests += [("places", _STEPS[match[1].lower().replace(" ", "-")]) for match in _NEAREST.finditer(prompt)]
    roundings = set(requests)
    return roundings.pop() if len(roundings) == 1 else None


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _COUNTS.index(word.lower())


def _rounded(value: Fraction, kind: str, count: int) -> Fraction:
    """Round half up, away from 0."""
    if value == 0:
        return value
    places = count if kind == "places" else count - 1 - math.floor(math.log10(abs(value)))
    size = Fraction(10) ** places
    magnitude = Fraction(math.floor(abs(value) * size + Fraction(1, 2))) / size
    return magnitude if value > 0 else -magnitude
