r"""Units and currencies of answers, separated from their values.

A unit on one side only does not make an answer wrong. Two different units always do: ``5 m`` is neither ``5 kg`` nor
``5 m^2``. Nothing is converted, since the question asks for one unit. Words that are not known units (``apples``,
``ways``) are left out of the comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMES = """
m meter metre|cm centimeter centimetre|mm millimeter millimetre|km kilometer kilometre|dm decimeter|in inch inches|
ft foot feet|yd yard|mi mile|nm nanometer|g gram gramme gm|kg kilogram kilo|mg milligram|lb lbs pound|oz ounce|
t ton tonne|s sec second|min minute mins|h hr hour hrs|day|week|month|yr year|l liter litre|ml milliliter millilitre|
gal gallon|cup|pint|quart|dollar usd|euro eur|gbp|cent|yen|rupee|degree deg|rad radian|percent percentage pct|celsius|
fahrenheit|kelvin|n newton|j joule|w watt|kw kilowatt|v volt|a amp ampere|ohm|hz hertz|pa pascal|mol mole|
ha hectare|acre|mph|kmh kph|
""".replace("\n", "")
_UNITS = {alias: group.split()[0] for group in _NAMES.split("|") for alias in group.split()}
_RATES = {"mph": ("mi", "h"), "kmh": ("km", "h")}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_ONE_LETTER = {"m", "g", "s", "h", "t", "l", "n", "j", "w", "v", "a"}
_CURRENCIES = {"$": "dollar", "\\$": "dollar", "\u20ac": "euro", "\u00a3": "gbp", "\u00a5": "yen", "\\pounds": "gbp"}
_CURRENCY = r"\\\$|(?<!\\)\$|\u20ac|\u00a3|\u00a5|\\pounds\b|\\(?:text|mathrm)\{\s*[\u20ac\u00a3\u00a5]\s*\}"
_BEFORE = re.compile(rf"^([+-]?)\s*({_CURRENCY})\s*(?:\\,|\\ )?\s*(?=[\d.+\-\\])")
_AFTER = re.compile(rf"(?<=[\d}}])\s*({_CURRENCY})$")
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\(?:text|mathrm)\s*\{\s*(?:\\?%|percent|percentage|pct)\s*\}|\bpercent|\bpercentage|\bpct)$"
)
_TEMPERATURE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF]))$")
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)$")
_POWER = r"(?:\s*\^\s*\{?\s*(\d)\s*\}?)?"
_SPACE = r"(?:\s|~|\\[ ,;:!]|\\quad)*"
_IN_TEXT = re.compile(
    rf"(?<=[\d}}\w)])?{_SPACE}\\(?:text|mathrm|textrm|mbox|textbf|textit|textnormal|operatorname)\s*\{{([^{{}}]*)\}}{_POWER}$"
)
_PLAIN = re.compile(rf"(?:(?<=[\d}})])|(?<=\\pi)(?=\s))({_SPACE})([A-Za-z]+(?:[ /][A-Za-z]+){{0,3}}){_POWER}$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value and its unit.

    ``value`` is the text without its unit. ``unit`` has (name, power) pairs; it is empty if there is no known unit, and
    ``(("percent", 1),)`` for percentages.
    """

    value: str
    unit: tuple[tuple[str, int], ...] = ()


NOTHING = Quantity("")


def quantity(text: str) -> Quantity:
    r"""Split a text in LaTeX's spelling into value and unit.

    >>> quantity(r"12 \text{ cm}^2"), quantity(r"\$50")
    (Quantity(value='12', unit=(('cm', 2),)), Quantity(value='50', unit=(('dollar', 1),)))
    >>> quantity("60 miles per hour").unit
    (('h', -1), ('mi', 1))
    """
    text = text.strip()
    for pattern in (_BEFORE, _AFTER):
        if match := pattern.search(text):
            mark = re.sub(r"\\(?:text|mathrm)\{\s*(.)\s*\}", r"\1", match[match.lastindex or 0])
            value = (
                (text[: match.start()] + text[match.end() :]) if pattern is _AFTER else match[1] + text[match.end() :]
            )
            return Quantity(value.strip(), ((_CURRENCIES[mark], 1),))
    if (match := _PERCENT.search(text)) and match.start():
        return Quantity(text[: match.start()].strip(), (("percent", 1),))
    if (match := _TEMPERATURE.search(text)) and match.start():
        return Quantity(
            text[: match.start()].strip(), (({"C": "celsius", "F": "fahrenheit"}[match[1] or match[2]], 1),)
        )
    if (match := _DEGREES.search(text)) and match.start():
        return Quantity(text[: match.start()].strip(), (("degree", 1),))
    if (match := _IN_TEXT.search(text)) and match.start():
        unit = _unit(match[1], int(match[2] or 1))
        words_only = re.fullmatch(r"[A-Za-z .,'-]*", match[1]) and re.search(
            r"(?:[\d}]|\\pi)\s*$", text[: match.start()]
        )
        if (unit is not None or words_only) and _is_unit_like(match[1]):
            return Quantity(text[: match.start()].strip(), unit or ())
    if match := _PLAIN.search(text):
        alone = match[2].lower() in _ONE_LETTER
        unit = _unit(match[2], int(match[3] or 1)) if not (alone and not match[1]) else None
        if unit is not None or (
            match[1] and all(len(w) > 2 for w in re.split("[ /]", match[2])) and _is_unit_like(match[2])
        ):
            return Quantity(text[: match.start()].strip(), unit or ())
    return Quantity(text)


_LONGEST = 80
_PART = r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)"
_PARTS = re.compile(rf"{_PART}(?:(?:\s*,)?\s*(?:and\s+)?{_PART})+\.?")


def compound(text: str) -> tuple[tuple[str, str], ...] | None:
    r"""Parse a text that measures in several known units into numbers and units; None if it does not.

    >>> compound(r"6\text{ hours and }30\text{ min}"), compound("6 hours"), compound("2 apples, 3 pears")
    ((('6', 'h'), ('30', 'min')), None, None)
    """
    plain = re.sub(
        r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}|\\[,;:! ]|~|\\quad", lambda m: m[1] or " ", text
    ).strip()
    if len(plain) > _LONGEST or not _PARTS.fullmatch(plain):
        return None
    found = [
        (number, _UNITS.get(word.lower()) or _UNITS.get(word.lower().removesuffix("s")))
        for number, word in re.findall(_PART, plain)
    ]
    known = tuple((number, unit) for number, unit in found if unit)
    return known if len({unit for _, unit in known}) == len(found) else None


def _is_unit_like(words: str) -> bool:
    """True unless the words join or deny values, or name a base, a half of the day or a large number."""
    return not re.search(
        r"\b(?:and|or|not|but|to|if|base|mod|is|a\.?m|p\.?m|million|billion|thousand|dozen)\b", words, re.IGNORECASE
    )


def _unit(words: str, power: int) -> tuple[tuple[str, int], ...] | None:
    """Return names and powers of a known unit, or None."""
    found: dict[str, int] = {}
    sign, scale = 1, 1
    for word in re.findall(r"[A-Za-z]+|/|\^?\d", words.replace(".", "").lower()):
        if word in ("/", "per", "a", "an") and found:
            sign = -1
        elif word in _POWERS:
            scale = _POWERS[word]
            if word in ("squared", "cubed") and found:
                last = list(found)[-1]
                found[last], scale = found[last] * scale, 1
        elif word.lstrip("^").isdigit() and found:
            found[list(found)[-1]] *= int(word.lstrip("^"))
        elif (name := _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))) is not None:
            for part, direction in zip(_RATES.get(name, (name,)), (1, -1), strict=False):
                found[part], scale = found.get(part, 0) + sign * direction * scale, 1
        else:
            return None
    if power != 1 and found:
        found[list(found)[-1]] *= power
    return tuple(sorted(found.items())) or None


def different_units(gold: Quantity, given: Quantity) -> bool:
    """True if both have units and these differ."""
    return bool(gold.unit and given.unit) and gold.unit != given.unit
