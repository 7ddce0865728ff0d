r"""Sets given by a condition: of integers, ``\{x \in \mathbb{Z} : -2 < x \le 2\}``, and of pairs.

A set of integers between two bounds is the list of them; a set of pairs is its condition, whatever its letters.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.numbers import calculated
from gspo_lightning.rewards.math.real_sets import real_set
from gspo_lightning.rewards.math.structure import Same

_BUILDER = re.compile(
    r"\s*(?:\\left)?\\\{\s*(?P<names>[a-z]|\(\s*[a-z](?:\s*,\s*[a-z])+\s*\))\s*"
    r"(?:\\in(?![a-z])\s*(?:\\mathbb\s*\{?\s*|\\mathbf\s*\{\s*)?(?P<set>[A-Z])\s*\}?\s*(?:\^\s*\{?\s*(?P<power>[\d+])\s*\}?)?)?\s*"
    r"(?::|\||\\(?:mid|colon|vert)(?![a-z])|\\text\{\s*:\s*\})\s*(?P<condition>.*?)(?:\\right)?\\\}\s*",
    re.DOTALL,
)
_ELLIPSIS = re.compile(r"\\[lc]?dots|\.\.\.|\u2026")
_MOST = 200
_LONGEST = 300


def equal_builders(gold: str, given: str, same: Same) -> bool | None:
    r"""Compare two sets of which one is given by a condition; None if none is, or if it is not understood.

    >>> equal_builders(r"\{x\in\mathbb{Z}: -2<x\le 2\}", r"\{-1,0,1,2\}", lambda a, b: a == b)
    True
    """
    if max(len(gold), len(given)) > _LONGEST:
        return None
    ours = integers(gold)
    candidate = integers(given)
    if ours is not None and candidate is not None:
        return ours == candidate
    if ours is not None and _ELLIPSIS.search(given):
        return False
    if ours is not None and _BUILDER.fullmatch(gold):
        return False if real_set(given, calculated) else None
    return _same_conditions(gold, given, same)


def is_builder(text: str) -> bool:
    """True if a text is a set given by a condition that can be compared."""
    match = _BUILDER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return False
    return "," in match["names"] or integers(text) is not None or real_set(text, calculated) is not None


def integers(text: str) -> frozenset[int] | None:
    r"""Return the elements of a set of integers: a list in braces, also with dots, or those between two bounds.

    >>> sorted(integers(r"\{2,4,\ldots,10\}") or ())
    [2, 4, 6, 8, 10]
    """
    if match := _BUILDER.fullmatch(text):
        return _between(match) if match["set"] in ("Z", "N") and "," not in match["names"] else None
    braces = re.fullmatch(r"\s*(?:\\left)?\\\{(.*?)(?:\\right)?\\\}\s*", text, re.DOTALL)
    if braces is None:
        return None
    pieces = split(braces[1], ",")
    numbers = [int(piece) for piece in pieces if re.fullmatch(r"[+-]?\d{1,9}", piece)]
    if len(numbers) == len(pieces):
        return frozenset(numbers)
    if len(pieces) < 4 or len(numbers) != len(pieces) - 1 or not _ELLIPSIS.fullmatch(pieces[-2]):
        return None
    return _progression(numbers)


def _progression(numbers: list[int]) -> frozenset[int] | None:
    """Return the numbers from the first to the last in the steps of those before the dots."""
    step = numbers[1] - numbers[0]
    steady = all(b - a == step for a, b in itertools.pairwise(numbers[:-1]))
    if (
        not step
        or not steady
        or (numbers[-1] - numbers[0]) % step
        or not 0 < (numbers[-1] - numbers[0]) // step <= _MOST
    ):
        return None
    return frozenset(range(numbers[0], numbers[-1] + (1 if step > 0 else -1), step))


def _between(match: re.Match[str]) -> frozenset[int] | None:
    """Return the integers that fulfil a condition with two bounds."""
    result = real_set(match["condition"], calculated)
    if result is None or not result.points or len(result.points) > _MOST:
        return None
    low = int(min(result.points)) - 2
    high = int(max(result.points)) + 2
    natural = match["set"] == "N" or match["power"] == "+"
    if natural:
        low = max(low, 0 if result.member(Fraction(0)) and match["power"] != "+" else 1)
    if high - low > _MOST or result.member(Fraction(high)) or (not natural and result.member(Fraction(low))):
        return None  # it has no end
    return frozenset(x for x in range(low, high) if result.member(Fraction(x)))


def _same_conditions(gold: str, given: str, same: Same) -> bool | None:
    """Compare sets of pairs by their conditions, with the letters of the record."""
    ours = _BUILDER.fullmatch(gold)
    candidate = _BUILDER.fullmatch(given)
    if ours is None or "," not in ours["names"]:
        return None
    if candidate is None:
        return same(ours["condition"], given) if re.search(r"[<>=]|\\[lg]e", given) else None
    names = re.findall("[a-z]", ours["names"])
    others = re.findall("[a-z]", candidate["names"])
    sets = {match["set"] for match in (ours, candidate) if match["set"]}
    if len(names) != len(others) or len(sets) > 1:
        return False
    letters = dict(zip(others, names, strict=True))
    pattern = rf"(?<![A-Za-z\\])(?:{'|'.join(others)})(?![A-Za-z])"
    return same(ours["condition"], re.sub(pattern, lambda m: letters[m[0]], candidate["condition"]))
