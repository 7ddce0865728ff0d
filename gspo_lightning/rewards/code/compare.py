"""Comparison of a program's results with the expected ones: outside the sandbox, by the data set's rules.

The default rule is LiveCodeBench's own (arXiv 2403.07974): printed text line by line, numbers as exact decimals without
a tolerance, returned values by equality.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, get_args

Rule = Literal["lines", "tokens", "exact", "unordered", "tolerance"]
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?", re.ASCII)
INCOMPARABLE = (RecursionError, TypeError, ValueError, ArithmeticError)
"""Exceptions from comparing arbitrary values: nested too deep, several kinds, too many digits, no number."""
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rule for comparing a result with the expected one.

    ============= ============================================== ===============================================
    rule          printed text                                   returned values
    ============= ============================================== ===============================================
    ``lines``     line by line, each stripped; equal text or     equal; a tuple at the top counts as a list
                  equal decimal numbers
    ``tokens``    words, whatever is between them                as ``lines``
    ``exact``     every character, but for the end of the text   equal and of the same types at every depth
    ``unordered`` lines in any order; of one line, its words     the items of a list in any order
    ``tolerance`` words; numbers within ``tolerance``            numbers within ``tolerance``, at every depth
    ============= ============================================== ===============================================

    Where an integer is expected, only that integer is right: a tolerance is for what is expected with a decimal point.
    A printed number has ASCII digits and no underscores.
    ``relative``: the tolerance is of max(1, the expected number); ``any_case``: upper and lower case are the same.
    """

    rule: Rule = "lines"
    tolerance: float = 1e-6
    relative: bool = True
    any_case: bool = False

    def output(self, printed: str, expected: str) -> bool:
        """True if printed text is as expected.

        >>> Comparison("tokens").output("1\\n2", "1 2"), Comparison("tolerance").output("0.3333333", "0.33333333")
        (True, True)
        """
        if self.any_case:
            printed = printed.lower()
            expected = expected.lower()
        if self.rule == "lines":
            return same_output(printed, expected)
        if self.rule == "exact":
            return _unix(printed).rstrip() == _unix(expected).rstrip()
        if self.rule == "unordered":
            return _in_any_order(printed, expected)
        expected_words = expected.split()
        words = printed.split(None, len(expected_words))
        same = self._same_word if self.rule == "tolerance" else str.__eq__
        return len(words) == len(expected_words) and all(map(same, words, expected_words))

    def value(self, returned: Any, expected: Any) -> bool:
        """True if a returned value is as expected.

        >>> Comparison("unordered").value([2, 1], [1, 2]), Comparison("tolerance").value(0.1 + 0.2, 0.3)
        (True, True)
        """
        try:
            if self.rule == "tolerance":
                return self._close(returned, expected)
            if self.rule == "exact":
                return _identical(returned, expected)
            if self.rule == "unordered":
                return _same_items(returned, expected)
        except INCOMPARABLE:
            return False
        return same_value(returned, expected)

    def _same_word(self, word: str, expected: str) -> bool:
        if word == expected:
            return True
        if not _NUMBER.fullmatch(word) or not _NUMBER.fullmatch(expected):
            return False
        if _INTEGER.fullmatch(expected):
            return Decimal(word) == Decimal(expected)
        return self._near(float(word), float(expected))

    def _close(self, returned: Any, expected: Any) -> bool:
        if isinstance(expected, list | tuple):
            same = isinstance(returned, list | tuple) and len(returned) == len(expected)
            return same and all(map(self._close, returned, expected))
        if isinstance(expected, dict):
            same = isinstance(returned, dict) and returned.keys() == expected.keys()
            return same and all(self._close(returned[key], value) for key, value in expected.items())
        if isinstance(expected, float) and isinstance(returned, int | float) and not isinstance(returned, bool):
            return self._near(returned, expected)
        return bool(returned == expected)

    def _near(self, number: float, expected: float) -> bool:
        try:
            if number == expected:
                return True
            scale = max(1.0, abs(expected)) if self.relative else 1.0
            return abs(number - expected) <= self.tolerance * scale
        except OverflowError:  # an integer too large for a float
            return False


assert get_args(Rule)[0] == Comparison().rule


def same_output(printed: str, expected: str) -> bool:
    """True if printed text has the expected number of lines, each equal when stripped, or equal as decimal numbers.

    >>> same_output(" 1.0 2\\nyes \\n\\n", "1 2.00\\nyes"), same_output("1.0000001", "1")
    (True, False)
    """
    printed = printed.strip()
    expected = expected.strip()
    if printed.count("\n") != expected.count("\n"):  # before splitting megabytes of lines
        return False
    return all(_same_line(a, b) for a, b in zip(_lines(printed), _lines(expected), strict=True))


def same_value(returned: Any, expected: Any) -> bool:
    """True if a returned value equals the expected one; a tuple at the top counts as a list, as JSON has none.

    >>> same_value((1, 2), [1, 2]), same_value([(1, 2)], [[1, 2]]), same_value(True, 1)
    (True, False, True)
    """
    if isinstance(returned, tuple) and not isinstance(expected, tuple):
        returned = list(returned)
    try:
        return bool(returned == expected)
    except INCOMPARABLE:
        return False


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


def _same_line(line: str, expected: str) -> bool:
    if line == expected:
        return True
    expected_words = expected.split()
    # one word more than expected is enough to differ: megabytes of words are not split
    numbers = _decimals(line.split(None, len(expected_words)))
    expected_numbers = _decimals(expected_words)
    if numbers is None or expected_numbers is None:
        return False
    return numbers == expected_numbers


def _decimals(words: list[str]) -> list[Decimal] | None:
    """Return the numbers that words are; None if one is none, or has other than ASCII digits, or has underscores."""
    if not all(word.isascii() and "_" not in word for word in words):
        return None
    try:
        numbers = [Decimal(word) for word in words]
    except InvalidOperation:
        return None
    return None if any(number.is_snan() for number in numbers) else numbers


def _in_any_order(printed: str, expected: str) -> bool:
    """Compare lines in any order, as words joined by one space; a single line by its words in any order."""
    expected_lines = [" ".join(line.split()) for line in _lines(expected.strip())]
    if len(expected_lines) == 1:
        expected_words = expected_lines[0].split()
        return sorted(printed.split(None, len(expected_words))) == sorted(expected_words)
    lines = printed.strip().split("\n", len(expected_lines))
    return sorted(" ".join(line.split()) for line in lines) == sorted(expected_lines)


def _same_items(returned: Any, expected: Any) -> bool:
    kinds = (list, tuple, set, frozenset)
    if not isinstance(expected, kinds) or not isinstance(returned, kinds) or len(returned) != len(expected):
        return same_value(returned, expected)
    return any(_sorted(returned, key) == _sorted(expected, key) for key in (None, repr))


def _sorted(items: Iterable[Any], key: Callable[[Any], str] | None) -> object:
    try:
        return sorted(items, key=key)
    except INCOMPARABLE:
        return object()


def _identical(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_identical, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_identical(one[key], other[key]) for key in one)
    return bool(one == other)
