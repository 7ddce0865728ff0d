r"""Comparison of values with units: the record's unit, or else the one that the prompt asks for, decides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.numbers import Literal, same_number
from gspo_lightning.rewards.math.numerals import exact
from gspo_lightning.rewards.math.unit_names import Unit, scale
from gspo_lightning.rewards.math.units import DEGREE, PERCENT, RADIAN, Quantity, conversion, converted, rivals

_FONT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|textrm)\s*\{([^{}]*)\}")
_IN_RADIANS = re.compile(r"\\pi(?![a-zA-Z])|\\?arc(?:sin|cos|tan|cot)|\\(?:sin|cos|tan)\s*\^\s*\{\s*-1\s*\}")
_NO_UNIT = {"units", "unit", "in total", "total", "exactly", "altogether"}
_SHARE = (("share", 1),)
_PI = Fraction(3141592653589793238462643383279502884, 10**36)


@dataclass(frozen=True, slots=True)
class Measured:
    """A record's value and unit and an answer's, ready to be compared.

    ``expected`` and ``result`` are the units to compare in: that of the record, and that of the answer.
    """

    gold: Quantity
    given: Quantity
    expected: Unit
    result: Unit

    @property
    def excluded(self) -> bool:
        """True if the units, or the words in their place, rule out that the two are equal."""
        if rivals(self.gold, self.given):
            return True
        if self.gold.unit and self.given.words and self.given.words not in _NO_UNIT:
            return True
        if self.gold.words and self.gold.words not in _NO_UNIT and self.given.unit:
            return True
        return bool(self.expected and self.result) and conversion(self.expected, self.result) is None

    @property
    def same_scale(self) -> bool:
        """True if the values can be compared as they are written."""
        if not (self.expected and self.result) or self.expected == self.result:
            return True
        scales = conversion(self.expected, self.result)
        return scales is not None and scales[0] == scales[1]


def measured(gold: Quantity, given: Quantity, requested: Unit) -> Measured:
    """Settle the units of a comparison.

    An angle in degrees may be given as a multiple of pi, and one with pi, without a unit, in degrees.

    Args:
        gold: the record's value.
        given: the answer's.
        requested: the unit that the prompt asks for; it counts if the record names none.
    """
    expected = gold.unit or requested
    result = given.unit
    if not result and expected == DEGREE and _IN_RADIANS.search(given.value):
        result = RADIAN
    if not expected and result == DEGREE and _IN_RADIANS.search(gold.value):
        expected = RADIAN
    return Measured(gold, given, expected, result)


def equal_literals(pair: Measured, gold: Literal, given: Literal, decimals: int | None) -> bool:
    """Compare two written-out numbers with their units."""
    shares = [bool(unit) and scale(unit).dimension == _SHARE for unit in (pair.expected, pair.result)]
    if any(shares) and not all(shares) and not (pair.expected and pair.result):
        return _equal_shares(pair, gold, given, decimals)
    if pair.same_scale:
        return same_number(gold, given, decimals)
    scales = conversion(pair.expected, pair.result)
    if scales is None:
        return False
    moved = converted(gold.value, scales[0], scales[1], _PI)
    return moved == given.value or (given.decimal and same_number(Literal(moved), given, decimals))


def _equal_shares(pair: Measured, gold: Literal, given: Literal, decimals: int | None) -> bool:
    """Compare a percentage with a number: 20 % is 0.2; its sign may be left out, or stand behind a number above 1."""
    unit = pair.expected or pair.result
    size = scale(unit).factor
    if pair.expected:
        if same_number(gold, given, decimals):
            return bool(pair.gold.unit) or given.value != gold.value * size
        return pair.gold.unit != () and same_number(_times(gold, size), given, decimals)
    if unit == PERCENT and abs(gold.value) > 1 and same_number(gold, given, decimals):
        return True
    return same_number(gold, _times(given, size), decimals)


def _times(number: Literal, size: Fraction) -> Literal:
    """Return a percentage as a number, with as many digits."""
    moved = len(str(size.denominator)) - 1
    return Literal(number.value * size, number.decimal, number.places + moved, number.digits)


def equal_expressions(pair: Measured, decimals: int | None) -> bool | None:
    """Compare two expressions with units of different size by computer algebra; None if the size is the same."""
    if pair.same_scale:
        return None
    scales = conversion(pair.expected, pair.result)
    if scales is None:
        return False
    from sympy import Rational, pi  # type: ignore[import-untyped]

    factor = converted(Rational(1), scales[1], scales[0], pi) if scales[0].offset == scales[1].offset else None
    if factor is None:
        return None
    expected = library.read(exact(_FONT.sub(lambda m: m[1], pair.gold.value)))
    result = library.parse(exact(pair.given.value), boxed=True)
    size = Rational(factor.numerator, factor.denominator) if isinstance(factor, Fraction) else factor
    return library.equal(
        expected, [item * size for item in result if hasattr(item, "free_symbols")], decimals, strict=True
    )
