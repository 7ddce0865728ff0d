r"""Comparison of an answer with the record's: rules from the plainest kind to the most general, then the library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.bases import based
from gspo_lightning.rewards.math.gold import Gold, bare, read_gold
from gspo_lightning.rewards.math.notation import canonical, in_latex, unwrapped
from gspo_lightning.rewards.math.numbers import Literal, calculated, literal, plain_integer, same_number
from gspo_lightning.rewards.math.structure import NAMED, compared, elements, has_signs
from gspo_lightning.rewards.math.times import clock, date, same_time
from gspo_lightning.rewards.math.units import Quantity, compound, different_units, quantity
from gspo_lightning.rewards.math.words import option, options, words

_NAME = re.compile(
    r"(?:\\?[a-zA-Z]+|\\(?:text|mathrm)\s*\{[^{}]*\})(?:_(?:\w|\{\w+\}))?(?:\([^()]*\))?|\([a-z](?:\s*,\s*[a-z])*\)|\|?\\?[a-zA-Z]+\|?"
)
"""Left side that an equation may define: ``x``, ``f(x)``, ``x_1``, ``\\text{area}``, ``(x, y)``."""
_ARITHMETIC = re.compile(r"(?:[-+*/^\d\s.,]|\\(?:times|cdot|div)(?![a-zA-Z])|\\frac\{\d+\}\{\d+\})+")
_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in\s*(?=[\[(\\])")
_FUNCTION = re.compile(r"^\s*(?:y|[a-zA-Z]\s*\(\s*[a-z]\s*\))\s*=\s*(?=[^=<>]+$)")
r"""``y =`` or ``f(x) =``, which name the same thing."""
_PERCENT = (("percent", 1),)
_ELLIPSIS = re.compile(r"\\[lc]?dots[a-z]?(?![a-z])|\.\.\.|\u2026")
_ROUNDED = re.compile(rf"[+-]?\d*\.\d+\s*(?:{_ELLIPSIS.pattern})\s*")
"""A decimal that goes on: ``0.333...``."""
_SIGNS = (
    (re.compile(r"\\leq?(?![a-zA-Z])|<="), "\u2264"),
    (re.compile(r"\\geq?(?![a-zA-Z])|>="), "\u2265"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
)
_BUILDER = re.compile(
    r"\\?\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|R)\s*)?(?:\\mid|\||:|\\vert)(.*?)\\?\}", re.DOTALL
)
_OR = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*or\s*\}|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\bor\b")
_INTERVAL = re.compile(r"[\[(][^\[\]]*,[^\[\]]*[\])]")
_VARIABLE = re.compile(r"[a-zA-Z]|\\(?:theta|alpha|beta|lambda|mu)")
_SPACES = re.compile(r"\s+|\\[,;:! ]")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The settings of a comparison: decimal places, and whether variable names and kinds of brackets matter."""

    decimals: int = 6
    strict: bool = True

    def same(
        self, gold: Gold, text: str, answer_type: str, *, boxed: bool = True, formula: bool = True
    ) -> tuple[bool, str]:
        """Return whether an answer equals the record's, with a reason or an empty text."""
        if gold.integer is not None and (integer := plain_integer(text)) is not None:
            return integer == gold.integer, ""
        if text.strip() == gold.text:
            return True, ""
        given = in_latex(unwrapped(text))
        if gold.canonical and canonical(given) == gold.canonical:
            return True, ""
        if answer_type == "choice":
            return option(given) == gold.option, ""
        if answer_type == "text":
            wanted = gold.words or words(gold.text)
            same = canonical(given).casefold() == gold.canonical.casefold()
            return same or (wanted is not None and words(given) == wanted), ""
        if answer_type in ("integer", "number"):
            return self._by_calculation(gold, given, boxed=boxed)
        if answer_type == "set":
            return self._same_set(gold, given), ""
        if gold.prose and gold.option and answer_type == "any" and (letter := option(given)) is not None:
            return letter == gold.option, ""
        if gold.date is not None or (gold.words is None and date(given) is not None):
            return gold.date == date(given), ""
        if _ELLIPSIS.search(_last_side(given)) and not _ELLIPSIS.search(gold.text):
            return False, "an ellipsis in place of a part"
        if self.strict and gold.option is None and _letter(gold.text) and _letter(given):
            return False, ""
        if not gold.prose:
            verdict = self._by_rules(gold, given) if answer_type == "any" else self._by_value(gold, given)
            if verdict is not None:
                return verdict, ""
        return self._by_library(gold, given, boxed=boxed, formula=boxed or formula)

    def _by_rules(self, gold: Gold, given: str) -> bool | None:
        """Return the verdict of the first rule for this kind of answer, or None."""
        if gold.option is not None and (letter := option(given)) is not None:
            return letter == gold.option
        if (letters := options(gold.text)) is not None and (others := options(given)) is not None:
            return letters == others
        if (measured := compound(gold.text)) is not None:
            return measured == compound(given)
        base = based(given)
        if gold.based is not None or base is not None:
            if gold.based is None and base is not None and base[1] == 10:
                given = base[0]
            else:
                return gold.based == base
        if gold.time is not None:
            time = clock(given)
            if time is not None:
                return same_time(gold.time, time)
            if gold.time[3] or (literal(bare(given)) is not None and "frac" not in given and "/" not in given):
                return False
        if gold.words is not None and gold.literal is None:
            return words(given) == gold.words
        verdict = self._by_value(gold, given)
        return self._by_structure(gold, given) if verdict is None else verdict

    def _by_structure(self, gold: Gold, given: str) -> bool | None:
        if has_signs(gold.text) and library.read(gold.text):
            return None  # upstream reads pairs of signs
        return compared(gold.text, given, lambda ours, theirs: self.same(read_gold(ours), theirs, "any")[0])

    def _by_value(self, gold: Gold, given: str) -> bool | None:
        return self._measured(gold, given, final=False)

    def _measured(self, gold: Gold, given: str, *, final: bool) -> bool | None:
        """Compare units and written-out numbers; None (or False if ``final``) if an answer is not written out."""
        named = given if "=" in gold.text else NAMED.sub("", given)
        single = re.fullmatch(r"\s*\[([^,\[\]]*)\]\s*", named)
        measured = quantity(single[1] if single and not gold.text.startswith("[") else named)
        if different_units(gold.quantity, measured):
            return False
        value = literal(bare(measured.value))
        if gold.literal is None or value is None:
            comma = re.fullmatch(r"([+-]?\d+),(\d+)", named.strip())
            if gold.literal is not None and gold.literal.decimal and comma:
                return same_number(gold.literal, literal(f"{comma[1]}.{comma[2]}") or gold.literal, self.decimals)
            return False if final else None
        return self._same_number(gold.literal, gold.quantity, value, measured)

    def _by_calculation(self, gold: Gold, given: str, *, boxed: bool) -> tuple[bool, str]:
        """Compare a number, or an equation of calculations one side of which is the number: 3 + 8 = 10 is not 10."""
        sides = _sides(given)
        if len(sides) == 1 or "=" in gold.text:
            return bool(self._measured(gold, given, final=True)), ""
        sides = sides[1:] if _NAME.fullmatch(sides[0]) else sides
        if not any(self._measured(gold, side, final=True) for side in sides):
            return False, ""
        values = [calculated(quantity(side).value) for side in sides]
        wanted = gold.literal or Literal(Fraction(0))
        if not all(value is None or same_number(wanted, Literal(value, True), self.decimals) for value in values):
            return False, "a false equation"
        return not boxed or None not in values, ""

    def _same_number(self, wanted: Literal, gold: Quantity, value: Literal, given: Quantity) -> bool:
        if same_number(wanted, value, self.decimals):
            return True
        if (gold.unit == _PERCENT) == (given.unit == _PERCENT):
            return False
        hundredth = Fraction(1, 100)
        if gold.unit == _PERCENT:
            return same_number(Literal(wanted.value * hundredth, wanted.decimal), value, self.decimals)
        return same_number(wanted, Literal(value.value * hundredth, value.decimal), self.decimals)

    def _same_set(self, gold: Gold, given: str) -> bool:
        """True if each element of one set equals an element of the other, in any order."""
        wanted, found = elements(gold.text), elements(given)
        return all(
            any(self.same(read_gold(a), b, "any")[0] for b in others)
            for ones, others in ((wanted, found), (found, wanted))
            for a in ones
        )

    def _by_library(self, gold: Gold, given: str, *, boxed: bool, formula: bool) -> tuple[bool, str]:
        wanted_text, given = self._comparable(gold, given)
        if self.strict and _other_brackets(wanted_text, given):
            return False, "other brackets"
        wanted = library.read(wanted_text)
        if formula and "=" not in gold.text and len(sides := _sides(given)) > 1:
            if gold.literal is not None and all(calculated(side) is not None for side in sides):
                return self._by_calculation(gold, given, boxed=boxed)
            return self._by_sides(wanted, sides, boxed=boxed)
        found = library.parse(given, boxed=True)
        if not formula and not self._equal(wanted, found):  # a sentence: let upstream search it
            found = library.parse(given, boxed=False)
        if not found:
            return False, "the answer is not understood as mathematics"
        if not self._equal(wanted, found):
            return False, ""
        if "=" not in gold.text and not self._equations_hold(wanted, given, found):
            return False, "a false equation"
        return True, ""

    def _by_sides(self, wanted: tuple[Any, ...], sides: list[str], *, boxed: bool) -> tuple[bool, str]:
        """Compare the last side of an equation; its other sides must agree: 41 = 42 is not 42."""
        if len(sides) == 2 and _NAME.fullmatch(sides[1]) and not _NAME.fullmatch(sides[0]):
            sides = sides[::-1]
        last = library.parse(sides[-1], boxed=True)
        if not self._equal(wanted, last):
            return False, ""
        for position, side in enumerate(sides[:-1]):
            if position == 0 and _NAME.fullmatch(side):
                continue
            if _ROUNDED.fullmatch(side):
                continue
            if not boxed and not _ARITHMETIC.fullmatch(side):
                continue  # in a sentence it may follow from earlier text
            if not self._equal(wanted, library.parse(side, boxed=True)):
                return False, "a false equation"
        return True, ""

    def _equal(self, wanted: Any, found: Any) -> bool:
        return library.equal(wanted, found, self.decimals, strict=self.strict)

    def _comparable(self, gold: Gold, given: str) -> tuple[str, str]:
        """Return both texts without units; an inequality becomes an interval if the other text is one."""
        if gold.prose:
            return gold.text, given
        wanted = gold.text
        if is_relation(given) and is_interval(wanted) and (interval := as_interval(given)):
            return _MEMBER.sub("", wanted), interval
        if is_relation(wanted) and is_interval(given) and (interval := as_interval(wanted)):
            return interval, _MEMBER.sub("", given)
        if bool(_MEMBER.search(wanted)) != bool(_MEMBER.search(given)):
            wanted, given = _MEMBER.sub("", wanted), NAMED.sub("", _MEMBER.sub("", given))
        if _FUNCTION.match(wanted) and _FUNCTION.match(given):
            wanted, given = _FUNCTION.sub("", wanted), _FUNCTION.sub("", given)
            return _spelled(wanted), _spelled(given)
        ours, theirs = gold.quantity, quantity(given)
        if ours.unit != _PERCENT and theirs.unit != _PERCENT:
            wanted, given = ours.value or wanted, theirs.value
        return _spelled(wanted), _spelled(given)

    def _equations_hold(self, wanted: tuple[Any, ...], given: str, found: list[Any]) -> bool:
        sides = library.unequal_sides(given)
        if sides is not None:
            left = library.parse(sides[0], boxed=True)
            if not library.equal(wanted, left, self.decimals, strict=True):
                return False
        return all(library.chain_holds(expression, self.decimals) for expression in found)


def _letter(text: str) -> bool:
    """True if a text is one letter; upstream does not distinguish X from x."""
    return len(text.strip()) == 1 and text.strip().isalpha()


def _sides(text: str) -> list[str]:
    """Split an equation or a chain into its sides; several equations, or an inequality, are returned whole."""
    if re.search(
        r"[<>;]|!=|\\(?:le|ge|ne|neq|lt|gt|leq|geq|approx|equiv|to|begin|cup)(?![a-zA-Z])|\b(?:and|or)\b", text
    ):
        return [text]
    sides = [side.strip() for side in text.split("=")]
    return (
        sides if all(sides) and not any("," in re.sub(r"\([^()]*\)|\d,\d{3}", "", side) for side in sides) else [text]
    )


def _last_side(text: str) -> str:
    """Return the text behind the last equals sign, without decimals that go on."""
    return _ROUNDED.sub("", text.rpartition("=")[2])


def _spelled(text: str) -> str:
    r"""Rewrite what the library misreads: degrees inside trigonometric functions, remainders of integers."""
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])", text):
        text = re.sub(r"(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?", r"\\frac{\1\\pi}{180}", text)
    return re.sub(r"(\d{1,18})\s*\\b?mod\s*([1-9]\d{0,17})", lambda m: str(int(m[1]) % int(m[2])), text)


def _other_brackets(gold: str, given: str) -> bool:
    """True if a set, or a list without brackets, answers a point or interval."""
    if not re.fullmatch(r"\s*[(\[][^()\[\]{}]*,[^()\[\]{}]*[)\]]\s*", gold):
        return False
    return bool(re.fullmatch(r"\s*\\\{.*\\\}\s*|[^()\[\]{}=<>]*,[^()\[\]{}=<>]*", given))


def is_interval(text: str) -> bool:
    r"""True if a text looks like an interval or a union of them; ``(1,2)`` may be a point as well."""
    pieces = [p.strip() for p in _MEMBER.sub("", text).split("\\cup")]
    return all(_INTERVAL.fullmatch(piece) for piece in pieces)


def is_relation(text: str) -> bool:
    """True if a text has an inequality sign."""
    return any(pattern.search(text) for pattern, _ in _SIGNS) or "<" in text or ">" in text


def as_interval(text: str) -> str | None:
    r"""Convert an inequality in one variable to an interval; None if the text is not one.

    >>> as_interval(r"2 \le x < 5"), as_interval("x > 3"), as_interval(r"x<0 \text{ or } x>1"), as_interval("|x| < 1")
    ('[2,5)', '(3,\\infty)', '(-\\infty,0)\\cup(1,\\infty)', '(-1,1)')
    """
    text = text.replace("$", " ")
    if match := _BUILDER.fullmatch(text.strip()):
        text = match[2]
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    pieces = [_piece(_SPACES.sub("", piece)) for piece in _OR.split(text)]
    if len({name for _, name in pieces}) != 1 or any(interval is None for interval, _ in pieces):
        return None
    return "\\cup".join(interval for interval, _ in pieces if interval)


def _piece(text: str) -> tuple[str | None, str]:
    parts = re.split("([<>\u2264\u2265])", text)
    values, signs = parts[::2], parts[1::2]
    if not all(values) or any("," in value for value in values):
        return None, ""
    if len(signs) == 2 and _VARIABLE.fullmatch(values[1]):
        left, name, right = values
        if all(s in "<\u2264" for s in signs):
            return _between(left, signs[0], signs[1], right), name
        if all(s in ">\u2265" for s in signs):
            return _between(right, signs[1], signs[0], left), name
    if len(signs) == 1:
        left, right, sign = *values, signs[0]
        if bars := re.fullmatch(r"(?:\||\\vert|\\lvert)([a-zA-Z])(?:\||\\vert|\\rvert)", left):
            return (
                (_between(f"-{right}", sign, sign, right), bars[1])
                if sign in "<\u2264" and right.isdigit()
                else (None, "")
            )
        if _VARIABLE.fullmatch(right) and not _VARIABLE.fullmatch(left):
            left, right, sign = right, left, {"<": ">", ">": "<", "\u2264": "\u2265", "\u2265": "\u2264"}[sign]
        if _VARIABLE.fullmatch(left) and not _VARIABLE.fullmatch(right):
            if sign in "<\u2264":
                return f"(-\\infty,{right}{')' if sign == '<' else ']'}", left
            return f"{'(' if sign == '>' else '['}{right},\\infty)", left
    return None, ""


def _between(low: str, first: str, second: str, high: str) -> str:
    opening = "[" if first in "\u2264\u2265" else "("
    closing = "]" if second in "\u2264\u2265" else ")"
    return f"{opening}{low},{high}{closing}"
