r"""Permutations in cycle notation: ``(1\ 3\ 2)(4\ 5)`` is ``(4\ 5)(3\ 2\ 1)``, and no product of numbers."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.question import Question

_SPACE = re.compile(r"(?:\s|\\[,;:! ]|~|\\q?quad(?![a-zA-Z])|\\circ(?![a-zA-Z]))+")
_CYCLES = re.compile(r"(?:\( ?\d{1,3}(?: \d{1,3})* ?\) ?)+")
_DIGITS = re.compile(r"(?:\([1-9]{2,9}\) ?)+")
"""Cycles whose points are digits without blanks: ``(12)(34)``."""
_ASKED = re.compile(r"\bpermutation|\bcycles?\b", re.IGNORECASE)


def equal_permutations(gold: str, given: str, question: Question) -> bool | None:
    r"""Compare two products of cycles as permutations; the right cycle acts first. None if the record is no product.

    >>> equal_permutations(r"(1\ 3\ 2)", r"(3\ 2\ 1)", Question()), equal_permutations("(1 3 2)", "(1 2 3)", Question())
    (True, False)
    >>> equal_permutations("(12)(34)", "(34)(21)", Question("Find the permutation."))
    True
    """
    digits = _ASKED.search(question.text) is not None
    ours = cycles(gold, digits=digits)
    candidate = cycles(given, digits=digits) if ours else None
    if ours is None:
        return None
    if candidate is None:
        return None if "=" in given else False  # 1 2 3 is a product to the library
    return _images(ours) == _images(candidate)


def cycles(text: str, *, digits: bool) -> list[list[int]] | None:
    """Return the cycles of a permutation; None if a text is none, or if no cycle has two points set apart by blanks.

    Args:
        text: an answer.
        digits: points may be digits that stand side by side.
    """
    plain = _SPACE.sub(" ", text).strip(" $.")
    if len(plain) > 200:
        return None
    if digits and _DIGITS.fullmatch(plain):
        points = [[int(digit) for digit in cycle] for cycle in re.findall(r"\d+", plain)]
    elif _CYCLES.fullmatch(plain) and (digits or re.search(r"\d \d", plain)):
        points = [[int(point) for point in cycle.split()] for cycle in re.findall(r"[\d ]+", plain) if cycle.strip()]
    else:
        return None
    return points if all(len(set(cycle)) == len(cycle) for cycle in points) else None


def _images(product: list[list[int]]) -> dict[int, int]:
    """Return the image of each point that a product of cycles moves."""
    images = {}
    for point in {point for cycle in product for point in cycle}:
        image = point
        for cycle in reversed(product):
            if image in cycle:
                image = cycle[(cycle.index(image) + 1) % len(cycle)]
        if image != point:
            images[point] = image
    return images
