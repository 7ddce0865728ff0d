r"""Written-out numbers, parsed exactly and without a computer algebra system.

These are integers with separators, decimals, repeating decimals, fractions, mixed numbers, powers of ten and
percentages: most answers of most data sets. Anything else is not a literal and gives None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gspo_lightning.rewards.math.calculator import calculate

_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d{1,400})"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d{{0,400}})?|\.\d{{1,400}})"
_INTEGER = re.compile(r"[+-]?\d{1,400}|[+-]?[1-9]\d{0,2}(?:,\d{3}){1,100}")
_PLAIN = re.compile(rf"([+-]?)({_DECIMAL})")
_REPEATING = re.compile(rf"([+-]?)({_DIGITS})\.(\d{{0,100}})\\overline\{{(\d{{1,100}})\}}")
_FRACTION = re.compile(rf"([+-]?)(?:({_DIGITS})\s*)?\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}")
_SLASH = re.compile(rf"([+-]?)(?:({_DIGITS})\s+)?({_DECIMAL})/([+-]?{_DECIMAL})")
_POWER = re.compile(rf"([+-]?)(?:({_DECIMAL})(?:\\times|\\cdot|\*|x))?10\^\{{?([+-]?\d{{1,3}})\}}?")
_SCIENTIFIC = re.compile(rf"([+-]?)({_DECIMAL})[eE]([+-]?\d{{1,3}})")
_QUOTIENT = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])|(?<=[\d)])\s*x\s*(?=[\d(])")
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SPACED = re.compile(r"\d{1,3}(?: \d{3})+")
_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip


ENOUGH = 6
"""Significant digits that a decimal must show to stand for a longer or an exact value."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A parsed number: its value, and whether it was written with a decimal point, which may stand for rounding.

    ``places`` is the number of decimal places that a decimal shows (negative for ``1.5e3``), ``digits`` that of its
    significant digits.
    """

    value: Fraction
    decimal: bool = False
    places: int = 0
    digits: int = 0


def plain_integer(text: str) -> int | None:
    """Parse a text as an integer, thousands separators allowed; None if it is not one.

    >>> plain_integer("-1,000"), plain_integer("1,00"), plain_integer("042")
    (-1000, None, 42)
    """
    return int(text.replace(",", "")) if _INTEGER.fullmatch(text) and text.isascii() else None


def literal(text: str) -> Literal | None:
    r"""Parse a text in LaTeX's spelling as a number; None if it is not one.

    >>> literal(r"\frac{6}{8}").value, literal("1 1/2").value, literal(r"0.1\overline{6}").value, literal("2^3")
    (Fraction(3, 4), Fraction(3, 2), Fraction(1, 6), None)
    """
    text = text.strip()
    while len(text) > 2 and (text[0], text[-1]) in (("{", "}"), ("(", ")")) and not set(text[1:-1]) & set("(){}"):
        text = text[1:-1].strip()
    if not text.isascii() or len(text) > 900:
        return None
    if text.lower() in _WORDS:
        return Literal(Fraction(_WORDS.index(text.lower())))
    text = re.sub(r"^([+-])\s+", r"\1", text)
    if _SPACED.fullmatch(text.lstrip("+-")):
        text = text.replace(" ", "")
    mixed = _SLASH.fullmatch(text) or _FRACTION.fullmatch(text.replace(" ", ""))
    try:
        return _mixed(mixed) if mixed else _single(re.sub(r"\s+(?=[^\d,])|(?<=[^\d,])\s+", "", text))
    except ZeroDivisionError:
        return None


def calculated(text: str) -> Fraction | None:
    r"""Return the value of a number or of a calculation with + - * / in LaTeX's spelling; None if it is neither.

    >>> calculated(r"3 \times 7 - 1"), calculated(r"\frac{2 + 4}{4}"), calculated("2 x 5"), calculated("2x + 5")
    (Fraction(20, 1), Fraction(3, 2), Fraction(10, 1), None)
    """
    if (number := literal(text)) is not None:
        return number.value
    text = _TIMES.sub("*", _SEPARATOR.sub("", _QUOTIENT.sub(r"((\1)/(\2))", text))).replace(r"\div", "/")
    try:
        return calculate(text)
    except ValueError:
        return None


def _mixed(match: re.Match[str]) -> Literal | None:
    sign, whole, above, below = match.groups()
    value = _number(above) / _number(below)
    if whole is not None:
        if not (above.isdigit() and below.isdigit() and 0 < value < 1):
            return None  # 2\frac{3}{2} is a product to some
        value += _number(whole)
    return Literal(-value if sign == "-" else value)


def _single(text: str) -> Literal | None:
    if match := _PLAIN.fullmatch(text):
        sign, digits = match.groups()
        return _decimal(sign, digits, 0)
    if match := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = match.groups()
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
        value = _number(whole) + Fraction(int(fixed or 0), 10 ** len(fixed)) + tail
        return Literal(-value if sign == "-" else value)
    if match := _POWER.fullmatch(text) or _SCIENTIFIC.fullmatch(text):
        sign, factor, exponent = match.groups()
        return _decimal(sign, factor or "1", int(exponent))
    return None


def _decimal(sign: str, written: str, exponent: int) -> Literal:
    value = _number(written)
    if exponent:
        value *= Fraction(10) ** exponent
    value = -value if sign == "-" else value
    behind = written.partition(".")[2]
    if not behind:
        return Literal(value)
    digits = len(re.sub("[.,]", "", written).lstrip("0"))
    return Literal(value, True, len(behind) - exponent, digits)


def _number(text: str) -> Fraction:
    text = text.replace(",", "")
    return Fraction(f"{text}0" if text.endswith(".") else text)


def same_number(gold: Literal, given: Literal, decimals: int | None = None) -> bool:
    """True if two numbers are equal, or one is a decimal of six significant digits or more that rounds the other.

    An integer of the record equals only itself. ``decimals`` replaces the rule: numbers of which one is a decimal are
    equal if they agree, and are not 0, when rounded to so many places.

    >>> same_number(literal("1/3"), literal("0.333333")), same_number(literal("1/3"), literal("0.33"))
    (True, False)
    >>> same_number(literal("5"), literal("5.0000004")), same_number(literal("1.4e-6"), literal("1.2e-6"))
    (False, False)
    """
    if gold.value == given.value:
        return True
    if not (gold.decimal or given.decimal):
        return False
    if decimals is not None:
        rounded = round(gold.value, decimals)
        return rounded == round(given.value, decimals) != 0
    if not gold.decimal and gold.value.denominator == 1:
        return False
    if gold.decimal and given.decimal:
        shorter, longer = sorted((gold, given), key=lambda number: number.places)
        return shorter.places < longer.places and rounds(shorter, longer.value)
    decimal, exact = (gold, given) if gold.decimal else (given, gold)
    return rounds(decimal, exact.value)


def rounds(decimal: Literal, value: Fraction) -> bool:
    """True if a decimal shows enough digits and is a value rounded to the places it shows."""
    return decimal.digits >= ENOUGH and 2 * abs(decimal.value - value) <= Fraction(10) ** -decimal.places
