r"""Families of values over the integers: ``\frac{\pi}{4} + k\pi, k \in \mathbb{Z}``, and residues modulo a number.

Two families are equal if they have the same elements in a window that the first of them fill; how they are written,
with how many terms, in degrees or with ``\pm``, does not matter. Natural numbers are no integers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.numerals import exact

_FIRST = 14
"""The families are compared by the elements of the integers up to this one."""
_MOST = 12
"""Maximum number of terms of a family."""
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|(?<=[a-z)}]))\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))")
_NAMED = re.compile(r"^\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?\s*=\s*(?=[^=<>]+$)")


@dataclass(frozen=True, slots=True)
class Family:
    """Terms in an integer variable; ``domain`` is ``Z``, ``N`` (from 0 or 1) or ``N+`` (from 1), empty if unknown."""

    terms: tuple[str, ...]
    variable: str
    domain: str = ""


def equal_families(gold: Family, given: Family) -> bool | None:
    r"""Compare two families; None if a term is not understood.

    >>> odd = Family(("2k+1",), "k", "Z")
    >>> equal_families(odd, Family(("2n-1",), "n", "Z")), equal_families(odd, Family(("2n-1",), "n", "N"))
    (True, False)
    """
    if len(gold.terms) > _MOST or len(given.terms) > _MOST:
        return None
    domain = gold.domain or "Z"
    pairs = [(domain, given.domain or domain)]
    if pairs == [("N", "N")]:
        pairs = [("N0", "N0"), ("N+", "N+")]
    elif "N" in pairs[0]:
        pairs = [tuple(start if item == "N" else item for item in pairs[0]) for start in ("N0", "N+")]  # type: ignore[misc]
    for ours, candidate in pairs:
        first = _elements(gold, ours)
        second = _elements(given, candidate)
        if first is None or second is None:
            return None
        if _same_elements(first, second):
            return True
    return False


def _elements(family: Family, domain: str) -> tuple[list[float], float] | None:
    """Return the elements of a family, and the size of the window that they fill."""
    start = {"Z": -_FIRST, "N0": 0, "N+": 1}.get(domain, -_FIRST)
    values: list[float] = []
    window = math.inf
    for term in family.terms:
        expression = _expression(term)
        if expression is None:
            return None
        numbers = [_value(expression, family.variable, k) for k in range(start, _FIRST + 1)]
        resolved = [number for number in numbers if number is not None]
        if len(resolved) < len(numbers):
            return None
        values += resolved
        if len(set(resolved)) > 1:
            window = min(window, abs(resolved[-1]), abs(resolved[0]) if domain == "Z" else math.inf)
    return values, window


def _expression(term: str) -> Any:
    text = _DEGREES.sub(lambda m: f"{m[1]}\\cdot\\frac{{\\pi}}{{180}}" if m[1] else "\\cdot\\frac{\\pi}{180}", term)
    result = library.parse(exact(_NAMED.sub("", text)), boxed=True)
    return next((item for item in result if hasattr(item, "free_symbols") and hasattr(item, "evalf")), None)


def _value(expression: Any, variable: str, number: int) -> float | None:
    """Return the value of a term; letters other than the variable get fixed values of no meaning."""
    try:
        names = {symbol: 1 / (2 + len(str(symbol)) + ord(str(symbol)[0])) for symbol in expression.free_symbols}
        names |= {symbol: number for symbol in expression.free_symbols if str(symbol) == variable}
        value = expression.subs(names).evalf(20)
        return float(value) if value.is_real else None
    except (AttributeError, TypeError, ValueError, OverflowError):  # no number for this integer
        return None


def _same_elements(first: tuple[list[float], float], second: tuple[list[float], float]) -> bool:
    window = 0.8 * min(first[1], second[1])
    ours, candidate = (sorted(value for value in values if abs(value) <= window) for values, _ in (first, second))
    return bool(ours) and _covered(ours, candidate) and _covered(candidate, ours)


def _covered(values: list[float], others: list[float]) -> bool:
    """True if each value is one of the others, up to rounding; both are sorted."""
    place = 0
    for value in values:
        room = 1e-9 * (1 + abs(value))
        while place < len(others) and others[place] < value - room:
            place += 1
        if place == len(others) or others[place] > value + room:
            return False
    return True
