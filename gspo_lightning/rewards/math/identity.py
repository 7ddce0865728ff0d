r"""Equality of expressions at points, where computer algebra does not see it: assumptions and constants.

Letters are positive where the prompt says so, odd roots are real, and constants of integration stand for any number:
``-\frac12\cos 2x + C`` is ``\sin^2 x + C``. Two expressions are equal if they agree to many digits at several points.
"""

from __future__ import annotations

import cmath
import re
from typing import Any

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.question import Question

_POINTS = (
    (0.8137, 1.3719, 2.1173, 0.5541, 1.7287, 2.6131),
    (-1.2713, 2.3391, -0.6167, 1.1519, -2.1733, 0.7457),
    (2.9173, -0.7219, 1.5639, -1.8311, 0.4337, -1.3979),
    (1.6411, 0.3571, 3.2287, 2.4919, -0.9151, 1.2253),
    (-0.4391, -1.9337, 0.8713, -2.7531, 1.1177, -3.1273),
)
"""Values of up to six letters at each point: numbers of no meaning, of both signs."""
_DIGITS = 1e-12
_CONSTANT = re.compile(r"(?<![A-Za-z\\])[CcKkABD](?:_\{?(\d)\}?|(?![A-Za-z_])|(?=e\s*\^|[a-z](?![a-z])))")
"""Letter that stands for a constant, unless the prompt uses it."""
_MOST_CONSTANTS = 4
_LONGEST = 300


def equal_at_points(expected: Any, given: Any, question: Question) -> bool:
    """True if a reading of one text equals a reading of the other at all points where both are defined.

    Args:
        expected: the readings of the record's answer.
        given: those of the answer.
        question: the prompt; it says whether letters are positive.
    """
    return any(
        _agree(_real(ours), _real(candidate), positive=question.positive)
        for ours in expected
        for candidate in given
        if _plain(ours) and _plain(candidate) and ours.free_symbols == candidate.free_symbols
    )


def _plain(value: Any) -> bool:
    """True for expressions that have a value: no sets, equations, matrices or texts."""
    return getattr(value, "is_commutative", False) is True and hasattr(value, "evalf") and not hasattr(value, "lhs")


def _real(value: Any) -> Any:
    """Give odd roots their real values."""
    from sympy import Abs, Rational, sign  # type: ignore[import-untyped]

    def odd_root(power: Any) -> bool:
        exponent = getattr(power, "exp", None)
        return bool(power.is_Pow and isinstance(exponent, Rational) and exponent.q % 2 == 1 and exponent.q > 1)

    return value.replace(odd_root, lambda power: sign(power.base) ** power.exp.p * Abs(power.base) ** power.exp)


def _agree(ours: Any, candidate: Any, *, positive: bool) -> bool:
    symbols = sorted(ours.free_symbols, key=str)
    if len(symbols) > len(_POINTS[0]):
        return False
    equal = 0
    for point in _POINTS if symbols else _POINTS[:1]:
        values = {s: abs(x) if positive else x for s, x in zip(symbols, point, strict=False)}
        pair = [number_at(item, values) for item in (ours, candidate)]
        first, second = pair
        if first is None or second is None:
            if first is not second:
                return False
            continue
        if abs(first - second) > _DIGITS * max(1.0, abs(first), abs(second)) or min(abs(first), abs(second)) < 1e-12:
            return False
        equal += 1
    return equal >= (3 if symbols else 1)


def number_at(expression: Any, values: dict[Any, float]) -> complex | None:
    """Return the value at a point, or None if there is none."""
    from sympy import Float

    try:
        value = complex(expression.subs({s: Float(x, 30) for s, x in values.items()}).evalf(25))
        return value if cmath.isfinite(value) else None
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):  # not a number there
        return None


def constants_of(text: str, question: Question) -> frozenset[str]:
    r"""Return the names of the constants in a text, as the library names them.

    >>> sorted(constants_of(r"A\cos x + C_1x", Question("Find it for c = A.")))
    ['c_1']
    """
    used = {match[0] for match in _CONSTANT.finditer(question.text)}
    result = [match for match in _CONSTANT.finditer(text) if match[0] not in used]
    return frozenset(match[0][0].lower() + (f"_{match[1]}" if match[1] else "") for match in result)


def equal_with_constants(expected: Any, given: Any, names: tuple[frozenset[str], frozenset[str]]) -> bool | None:
    r"""Compare solutions with constants that stand for any number; None if there are none, or not linearly.

    Such a solution is a fixed part and a combination of functions with the constants as factors. Two are the same set
    of functions if they have as many constants, each function of one is a combination of those of the other, and so
    is the difference of the fixed parts.

    Args:
        expected: the readings of the record's answer.
        given: those of the answer.
        names: the names of the constants of the two.
    """
    for ours in expected:
        for candidate in given:
            if not (_plain(ours) and _plain(candidate)):
                continue
            first = _linear(ours, names[0])
            second = _linear(candidate, names[1])
            if first is None or second is None:
                continue
            if len(first[1]) != len(second[1]) or first[2] != second[2]:
                return False
            return _same_span(first, second)
    return None


def _linear(expression: Any, names: frozenset[str]) -> tuple[Any, list[Any], frozenset[Any]] | None:
    """Split an expression into its fixed part, the factors of its constants, and its variables."""
    constants = [s for s in expression.free_symbols if re.sub("[{}]", "", str(s)).lower() in names]
    if not 0 < len(constants) <= _MOST_CONSTANTS:
        return None
    factors = [expression.diff(s) for s in constants]
    if any(factor.free_symbols & set(constants) for factor in factors):
        return None
    fixed = expression.subs(dict.fromkeys(constants, 0))
    return fixed, factors, frozenset(expression.free_symbols - set(constants))


def _same_span(first: tuple[Any, list[Any], frozenset[Any]], second: tuple[Any, list[Any], frozenset[Any]]) -> bool:
    symbols = sorted(first[2], key=str)
    columns = []
    for function in (*first[1], *second[1], first[0] - second[0]):
        values = [number_at(function, dict(zip(symbols, _point(i, len(symbols)), strict=True))) for i in range(9)]
        columns.append([value for value in values if value is not None])
    count = len(first[1])
    rows = min(map(len, columns))
    if rows < count + 3 or rows < 9:
        return False
    ranks = [rank(columns[:count]), rank(columns[count : 2 * count]), rank(columns)]
    return ranks == [count] * 3


def _point(index: int, size: int) -> tuple[float, ...]:
    return tuple(0.31 + 0.173 * index + 0.29 * place + 0.07 * ((index * 7 + place * 3) % 5) for place in range(size))


def rank(columns: list[list[complex]]) -> int:
    """Return the rank of a matrix of numbers, by elimination with pivots."""
    rest = [list(column) for column in columns]
    size = max((abs(x) for column in rest for x in column), default=0.0)
    pivots = 0
    for row in range(len(rest[0])):
        pivot = max(range(pivots, len(rest)), key=lambda i: abs(rest[i][row]), default=None)
        if pivot is None or abs(rest[pivot][row]) <= 1e-9 * size:
            continue
        rest[pivots], rest[pivot] = rest[pivot], rest[pivots]
        for i in range(pivots + 1, len(rest)):
            factor = rest[i][row] / rest[pivots][row]
            rest[i] = [a - factor * b for a, b in zip(rest[i], rest[pivots], strict=True)]
        pivots += 1
        if pivots == len(rest):
            break
    return pivots


def equal_beyond_algebra(wanted_text: str, given_text: str, question: Question) -> bool:
    """Compare two expressions at points, with the assumptions of the prompt.

    Args:
        wanted_text: the record's answer, without its unit.
        given_text: the answer, without its unit.
        question: the prompt.
    """
    if max(len(wanted_text), len(given_text)) > _LONGEST:
        return False
    expected = library.read(wanted_text)
    given = library.parse(given_text, boxed=True)
    if question.constants or re.search(r"[+-]\s*[CK](?:_\{?\d\}?)?\s*$", wanted_text):
        names = constants_of(wanted_text, question), constants_of(given_text, question)
        verdict = equal_with_constants(expected, given, names)
        if verdict is not None:
            return verdict
    return equal_at_points(expected, given, question)


def equal_curves(wanted_text: str, given_text: str) -> bool:
    r"""True if two equations in two or more unknowns have the same solutions because they differ by a factor.

    >>> equal_curves("x^2 = y^2", r"y = \pm x"), equal_curves("x + y = 1", "2x + 2y = 3")
    (True, False)
    """
    first = _curve(wanted_text)
    second = _curve(given_text)
    if first is None or second is None or first.free_symbols != second.free_symbols or len(first.free_symbols) < 2:
        return False
    symbols = sorted(first.free_symbols, key=str)
    ratios = []
    for point in _POINTS:
        values = dict(zip(symbols, point, strict=False))
        above = number_at(first, values)
        below = number_at(second, values)
        if above is None or below is None or 0 in (above, below):
            return False
        ratios.append(above / below)
    return all(abs(ratio - ratios[0]) <= 1e-9 * abs(ratios[0]) for ratio in ratios)


def _curve(text: str) -> Any:
    """Return the difference of an equation's sides; for both signs of a plus-minus the product of the two."""
    sides = text.split("=")
    if (
        len(sides) != 2
        or len(text) > _LONGEST
        or text.count("\\pm") > 1
        or re.search(
            r"[<>,;]|\\(?:le|ge"
            r"|in)(?![a-z])",
            text,
        )
    ):
        return None
    product = None
    for sign in ("+", "-") if "\\pm" in text else ("",):
        left, right = (library.parse(re.sub(r"\\pm(?![a-z])", sign, side).strip(" +"), boxed=True) for side in sides)
        if not (left and right and _plain(left[0]) and _plain(right[0])):
            return None
        difference = left[0] - right[0]
        product = difference if product is None else product * difference
    return product
