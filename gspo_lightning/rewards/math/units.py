r"""Values and units of answers: separation of the two, and whether and by how much two units differ.

The unit is the record's, or else the one its prompt asks for. A value without a unit is taken in that unit; two units
of one dimension are converted (``36 km/h`` is ``10 m/s``), and units of two dimensions always differ. Words that are
no known unit (``apples``, ``ways``) do not count beside each other, but never equal a known unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gspo_lightning.rewards.math.notation import spaced
from gspo_lightning.rewards.math.unit_names import Scale, Unit, scale, unit_of

PERCENT: Unit = (("percent", 1),)
DEGREE: Unit = (("degree", 1),)
RADIAN: Unit = (("rad", 1),)
_CURRENCIES = {"$": "dollar", "\\$": "dollar", "\u20ac": "euro", "\u00a3": "gbp", "\u00a5": "yen", "\\pounds": "gbp"}
_CURRENCY = r"\\\$|(?<!\\)\$|\u20ac|\u00a3|\u00a5|\\pounds\b|\\(?:text|mathrm)\{\s*[\u20ac\u00a3\u00a5]\s*\}"
_BEFORE = re.compile(rf"^([+-]?)\s*({_CURRENCY})\s*(?:\\,|\\ )?\s*(?=[\d.+\-\\])")
_AFTER = re.compile(rf"(?<=[\d}}])\s*({_CURRENCY})$")
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\(?:text|mathrm)\s*\{\s*(?:\\?%|percent|percentage|pct)\s*\}|\bpercent|\bpercentage|\bpct)$"
)
_TEMPERATURE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF]))$")
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)$")
_MINUTES = re.compile(r"(?<=\d)\s*(''|'|\^\s*\{?\s*\\prime\s*\}?)$")
TRIGONOMETRIC = re.compile(r"\\?(?<![a-zA-Z])(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
"""A function of an angle: a degree sign behind it belongs to its argument, not to its value."""
_PHASOR = re.compile(r"[\d}]\s*\\angle(?![a-z])")
"""A number in polar form: its angle belongs to its value."""
_POWER = r"(?:\s*\^\s*\{?\s*(\d)\s*\}?)?"
_SPACE = r"(?:\s|~|\\[ ,;:!]|\\quad)*"
_FONT = r"\\(?:text|mathrm|textrm|mbox|textbf|textit|textnormal|operatorname|rm|si|unit|mathit)"
_IN_TEXT = re.compile(rf"{_SPACE}{_FONT}\s*\{{([^{{}}]*)\}}{_POWER}$")
_PLAIN = re.compile(rf"(?:(?<=[\d}})])|(?<=\\pi)(?=\s))({_SPACE})([A-Za-z]+(?:[ /][A-Za-z]+){{0,3}}){_POWER}$")
_UNIT_PART = (
    rf"{_FONT}\s*\{{[^{{}}]*\}}|\^\s*\{{?\s*[-+]?\d\s*\}}?|\^\s*\{{?\s*\\circ\s*\}}?|\\(?:cdot|times|Omega|mu"
    rf"|degree|circ)(?![a-zA-Z])"
    r"|\\[ ,;:!]|[\s~()/*.\u00b5\u03a9\u03bc\u2126\u00b7]"
)
_TAIL = re.compile(rf"(?:{_UNIT_PART}|(?<![A-Za-z])[A-Za-z]+)+")
_START = re.compile(
    rf"{_SPACE}(?:{_FONT}\s*\{{\s*/?\s*[A-Za-z\u00b5\u03a9\u03bc%(]|\\Omega|\\mu\s*{_FONT}|\\frac\s*\{{\s*{_FONT})"
    rf"|(?<=\d)\s+(?=[A-Za-z])"
)
_QUOTIENT = re.compile(rf"\\frac\s*\{{((?:{_UNIT_PART})+)\}}\s*\{{((?:{_UNIT_PART})+)\}}")
_LONGEST = 160
"""Characters at the end of an answer that may be a unit."""
_MAGNITUDES = re.compile(
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial|lakh|crore|halves|thirds"
    r"|quarters)\b"
    r"|ths?\b",
    re.IGNORECASE,
)
"""Words behind a number that change its value: they are part of it, not its unit."""
_RIVALS: tuple[tuple[str, ...], ...] = (
    ("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest"),
    ("above", "below"),
    ("left", "right"),
    ("up upward upwards", "down downward downwards"),
    ("clockwise", "counterclockwise anticlockwise"),
    ("more", "less fewer"),
    ("gain profit", "loss"),
    ("increase", "decrease"),
    ("bc bce", "ad ce"),
)
"""Words behind a value that exclude each other; those of one meaning stand in one text."""
_SIDES = {word: side for group in _RIVALS for side in group for word in side.split()}
_SIDE_FIRST = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{\s*)?(?:an?\s+)?(?P<word>[A-Za-z]{4,})\s+of\s*(?:\}\s*)?(?P<value>[\d\\$+-].*)",
    re.DOTALL,
)
"""Such a word in front of its value: ``a loss of 5``."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value and its unit.

    ``value`` is the text without its unit. ``unit`` has (name, power) pairs; it is empty if there is no known unit, and
    ``(("percent", 1),)`` for percentages. ``words`` are the words behind a value that name no known unit.
    """

    value: str
    unit: Unit = ()
    words: str = ""


NOTHING = Quantity("")


def quantity(text: str) -> Quantity:
    r"""Split a text in LaTeX's spelling into value and unit.

    >>> quantity(r"12 \text{ cm}^2"), quantity(r"\$50")
    (Quantity(value='12', unit=(('cm', 2),), words=''), Quantity(value='50', unit=(('dollar', 1),), words=''))
    >>> quantity("60 miles per hour").unit, quantity(r"5\,\mathrm{m\,s^{-1}}").unit
    ((('h', -1), ('mi', 1)), (('m', 1), ('s', -1)))
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return Quantity(text)
    text = spaced(text).strip()
    if (first := _SIDE_FIRST.fullmatch(text)) and first["word"].lower() in _SIDES:
        text = f"{first['value']}\\text{{ {first['word'].lower()}}}"
    marked = _marked(text)
    if marked is not None:
        return marked
    if (result := _formula(text)) is not None:
        return result
    if (match := _IN_TEXT.search(text)) and match.start() and _plain_words(match[1]):
        return _spoken(text[: match.start()], match[1])
    return _in_words(text)


def _marked(text: str) -> Quantity | None:
    """Split off a mark: a currency, percent, degrees, minutes of arc."""
    for pattern in (_BEFORE, _AFTER):
        if match := pattern.search(text):
            mark = re.sub(r"\\(?:text|mathrm)\{\s*(.)\s*\}", r"\1", match[match.lastindex or 0])
            rest = text[: match.start()] if pattern is _AFTER else match[1]
            return Quantity((rest + text[match.end() :]).strip(), ((_CURRENCIES[mark], 1),))
    if (match := _PERCENT.search(text)) and match.start():
        return Quantity(text[: match.start()].strip(), PERCENT)
    if (match := _TEMPERATURE.search(text)) and match.start():
        name = {"C": "celsius", "F": "fahrenheit"}[match[1] or match[2]]
        return Quantity(text[: match.start()].strip(), ((name, 1),))
    if (match := _DEGREES.search(text)) and match.start():
        return (
            Quantity(text)
            if TRIGONOMETRIC.search(text) or _PHASOR.search(text)
            else Quantity(text[: match.start()].strip(), DEGREE)
        )
    if (match := _MINUTES.search(text)) and match.start():
        name = "arcsec" if match[1] == "''" else "arcmin"
        return Quantity(text[: match.start()].strip(), ((name, 1),))
    return None


def _plain_words(words: str) -> bool:
    return re.fullmatch(r"[A-Za-z .,'%\\-]*", words) is not None


def _spoken(value: str, words: str) -> Quantity:
    """Return a value with a unit in words; the text as a whole if the words say more than a unit."""
    unit = unit_of(words.replace("\\%", "%"), loosely=True)
    if _is_unit_like(words, resolved=bool(unit)) and (unit or re.search(r"(?:[\d}]|\\pi)\s*$", value)):
        return Quantity(value.strip(), unit, "" if unit else " ".join(words.lower().split()))
    return Quantity(f"{value}\\text{{{words}}}")


def _formula(text: str) -> Quantity | None:
    r"""Split off a product of units: ``\text{N}\cdot\text{m}``, ``\mathrm{kg\,m^2/s^2}``; None if there is none."""
    text = re.sub(r"\^\s*\{\s*([-+]?\d)\s*\}", r"^\1", text)
    offset = max(0, len(text) - _LONGEST)
    for match in _START.finditer(text, offset):
        if match.start() == 0:
            continue
        tail = _QUOTIENT.sub(r"\1/(\2)", text[match.start() :])
        if not _TAIL.fullmatch(tail) or re.search(r"\b[ap]\.\s?m\b", tail):  # p.m. is no picometre
            continue
        unit = unit_of(_without_fonts(tail))
        if unit and (match[0].strip() or len(unit) > 1 or len(unit[0][0]) > 1):
            return Quantity(text[: match.start()].strip(), unit)
    return None


def _without_fonts(tail: str) -> str:
    for pattern, replacement in (
        (rf"{_FONT}\s*\{{([^{{}}]*)\}}", r" \1 "),
        (r"\\(?:cdot|times)(?![a-zA-Z])|\u00b7", "*"),
        (r"\\Omega(?![a-zA-Z])|\u2126", "\u03a9"),
        (r"\\mu(?![a-zA-Z])\s*|\u03bc", "\u00b5"),
        (r"\^\s*\{?\s*\\circ\s*\}?", "\u00b0"),
        (r"\\[ ,;:!]|~", " "),
        (r"\^\s*\{\s*([-+]?\d+)\s*\}", r"^\1"),
        (r"\s*\^\s*", "^"),
    ):
        tail = re.sub(pattern, replacement, tail)
    return tail


def _in_words(text: str) -> Quantity:
    match = _PLAIN.search(text)
    if match is None:
        return Quantity(text)
    alone = len(match[2]) == 1
    power = int(match[3] or 1)
    unit = () if alone and (not match[1] or match[2] not in "mgsthlNJWVA") else unit_of(match[2], loosely=True)
    if unit and power != 1:
        unit = tuple((name, exponent * power) for name, exponent in unit)
    long_words = bool(match[1]) and all(len(word) > 2 for word in re.split("[ /]", match[2]))
    if (unit or long_words) and _is_unit_like(match[2], resolved=bool(unit)):
        return Quantity(text[: match.start()].strip(), unit, "" if unit else " ".join(match[2].lower().split()))
    return Quantity(text)


_PART = r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)"
_PARTS = re.compile(rf"{_PART}(?:(?:\s*,)?\s*(?:and\s+)?{_PART})+\.?")


def compound(text: str) -> tuple[Fraction, Unit] | None:
    r"""Return the sum of a text that measures in several units of one dimension, in the last unit; None otherwise.

    >>> compound(r"6\text{ hours and }30\text{ min}"), compound("6 hours"), compound("2 apples, 3 pears")
    ((Fraction(390, 1), (('min', 1),)), None, None)
    """
    plain = re.sub(
        r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}|\\[,;:! ]|~|\\quad", lambda m: m[1] or " ", text
    ).strip()
    if len(plain) > _LONGEST or not _PARTS.fullmatch(plain):
        return None
    parts = [(Fraction(number), unit_of(word)) for number, word in re.findall(_PART, plain)]
    scales = [scale(unit) for _, unit in parts if unit]
    sizes = [item.factor for item in scales]
    one_dimension = len(scales) == len(parts) and len({item.dimension for item in scales}) == 1
    if not one_dimension or sizes != sorted(set(sizes), reverse=True):
        return None
    total = sum((number * size for (number, _), size in zip(parts, sizes, strict=True)), Fraction(0))
    return total / sizes[-1], parts[-1][1]


def _is_unit_like(words: str, *, resolved: bool) -> bool:
    """True unless words join or deny values, or name a base or a half of the day, or, without a unit, a number."""
    joins = re.search(r"\b(?:and|or|not|but|to|if|base|mod|is|a\.?m|p\.?m|times)\b", words, re.IGNORECASE)
    return joins is None and (resolved or _MAGNITUDES.search(words) is None)


def rivals(gold: Quantity, given: Quantity) -> bool:
    """True if the words behind two values exclude each other, as north and south do."""
    if not (gold.words and given.words):
        return False
    for group in map(set, _RIVALS):
        ours = group.intersection(_SIDES.get(word) for word in gold.words.split())
        candidate = group.intersection(_SIDES.get(word) for word in given.words.split())
        if ours and candidate and ours != candidate:
            return True
    return False


def conversion(gold: Unit, given: Unit) -> tuple[Scale, Scale] | None:
    """Return the scales of two units of one dimension, None if they have two; ``pound`` is a mass or money."""
    names = {name for name, _ in (*gold, *given)}
    if {"lb", "gbp"} <= names:
        gold = _as_money(gold)
        given = _as_money(given)
    ours = scale(gold)
    candidate = scale(given)
    return (ours, candidate) if ours.dimension == candidate.dimension else None


def _as_money(unit: Unit) -> Unit:
    return tuple(("gbp" if name == "lb" else name, power) for name, power in unit)


def converted(value: Any, given: Scale, gold: Scale, pi: Any) -> Any:
    """Return a value in another unit of its dimension.

    Args:
        value: a number, in the unit of scale ``given``.
        given: the scale it has.
        gold: the scale it gets.
        pi: the number pi; needed only if one of the scales has it (degrees and radians).
    """
    size = given.factor / gold.factor
    power = given.pi - gold.pi
    moved = value * size.numerator / size.denominator
    if power:
        moved = moved * pi**power
    return moved + (given.offset - gold.offset) / gold.factor if given.offset != gold.offset else moved
