"""Comparing what a program left with what was expected: outside the sandbox, by LiveCodeBench's rules.

The rules are those of LiveCodeBench's own evaluation (arXiv 2403.07974): printed text line by line, numbers as exact
decimals without a tolerance, returned values by equality.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["same_output", "same_value"]


def same_output(printed: str, expected: str) -> bool:
    """Whether printed text is as expected: as many lines, and each equal when stripped, or equal as decimal numbers.

    >>> same_output(" 1.0 2\\nyes \\n\\n", "1 2.00\\nyes"), same_output("1.0000001", "1")
    (True, False)
    """
    lines, wanted = _lines(printed), _lines(expected)
    return len(lines) == len(wanted) and all(_same_line(a, b) for a, b in zip(lines, wanted, strict=True))


def same_value(returned: Any, expected: Any) -> bool:
    """Whether a returned value equals the expected one; a tuple at the top counts as a list, as JSON has none.

    >>> same_value((1, 2), [1, 2]), same_value([(1, 2)], [[1, 2]]), same_value(True, 1)
    (True, False, True)
    """
    if isinstance(returned, tuple) and not isinstance(expected, tuple):
        returned = list(returned)
    try:
        return bool(returned == expected)
    except RecursionError:  # nested deeper than any expected value can be read
        return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    numbers, wanted_numbers = _decimals(line), _decimals(wanted)
    if numbers is None or wanted_numbers is None:
        return False
    return numbers == wanted_numbers


def _decimals(line: str) -> list[Decimal] | None:
    try:
        found = [Decimal(token) for token in line.split()]
    except InvalidOperation:
        return None
    return None if any(number.is_snan() for number in found) else found
