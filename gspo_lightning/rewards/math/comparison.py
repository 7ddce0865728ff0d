r"""Comparison of an answer with the record's: rules from the plainest kind to the most general, then the library."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.bases import based
from gspo_lightning.rewards.math.chemistry import same_compound
from gspo_lightning.rewards.math.equations import Statement, constant_of, has_letters, statement
from gspo_lightning.rewards.math.gold import Gold, bare, read_gold, spelled
from gspo_lightning.rewards.math.identity import equal_beyond_algebra, equal_curves
from gspo_lightning.rewards.math.kinds import by_kind
from gspo_lightning.rewards.math.lists import by_lists
from gspo_lightning.rewards.math.matrices import written_out
from gspo_lightning.rewards.math.notation import bare_latex, canonical, unwrapped, years
from gspo_lightning.rewards.math.numbers import Literal, calculated, literal, plain_integer, rounds, same_number
from gspo_lightning.rewards.math.numerals import exact
from gspo_lightning.rewards.math.parts import by_parts
from gspo_lightning.rewards.math.propositions import equal_formulas
from gspo_lightning.rewards.math.quantities import equal_expressions, equal_literals, measured
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.real_sets import equal_sets
from gspo_lightning.rewards.math.rounding import rounded_as_asked
from gspo_lightning.rewards.math.sentences import same_sentence
from gspo_lightning.rewards.math.spelling import for_library
from gspo_lightning.rewards.math.structure import NAMED, compared, elements, has_signs
from gspo_lightning.rewards.math.times import clock, date, same_time
from gspo_lightning.rewards.math.units import PERCENT, Quantity, compound, quantity
from gspo_lightning.rewards.math.words import case_differs, letter_tuple, option, options, words

_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in\s*(?=[\[(\\])")
_FUNCTION = re.compile(r"^\s*(?:y|[a-zA-Z]\s*(?:\^\s*\{\s*-1\s*\})?\s*\(\s*([a-z])\s*\))\s*=\s*(?=[^=<>]+$)")
r"""``y =`` or ``f(x) =``, which name the same thing."""
_ELLIPSIS = re.compile(r"\\[lc]?dots[a-z]?(?![a-z])|\.\.\.|\u2026")
_FIRST_TERMS = re.compile(r"\bfirst\s+(?:\w+\s+)?terms\b", re.IGNORECASE)
_GOES_ON = re.compile(rf",?\s*(?:{_ELLIPSIS.pattern})\s*$")
"""Dots behind the first terms of a sequence, which add nothing."""
_ROUNDED = re.compile(rf"[+-]?\d*\.\d+\s*(?:{_ELLIPSIS.pattern})\s*")
"""A decimal that goes on: ``0.333...``."""
_CODE = re.compile(
    r"(?<!\\)\blambda\b[^:]*:|\)\s*\(\s*\)|(?<!\\)\b[A-Za-z_]\w*\(\s*\)|__\w+|(?<!\\)\b(?:print|int|float|str"
    r"|len|range|eval|exec|"
    r"chr|ord|input|bool|round|sorted|Fraction|Decimal|map|filter|import|def|return|assert)\s*[( ]|"
    r"(?<!\\)\bfor\s+\w+\s+in\b|^[^\\]*\bif\b.*\belse\b|(?<![=<>!])==(?!=)|(?<!\\)\b[a-z]\w+\.[a-z]\w+\("
)
"""Calls and code: they may compute an answer, but are none."""
_CODE_MARKS = ("(", "==", "__", "lambda", "import", "return", "assert", " else", "for ", "def ")
_FORMULA = re.compile(r"\\(?!text|mathrm)[a-z]|[\^/]")
_EQUATION = re.compile(r"=|\\equiv(?![a-z])")
_CAPITAL = re.compile("[A-J]")
_KIND = r"(?:the )?(?:(?:line )?segment|point|line|side|angle|triangle|vertex|vertices|option)"
_POINT_LABEL = re.compile(
    rf"^(?:\\(?:text|mathrm)\s*\{{\s*{_KIND}\s*\}}\s*(?=\S)"
    rf"|(\\(?:text|mathrm)\s*\{{\s*)?{_KIND}\s+(?=(?-i:[A-Z]{{1,5}})'?\s*\}}?\s*$|\())",
    re.IGNORECASE,
)
"""Word in front of a label, inside or outside a font: ``\\text{point } B``, ``Point B``."""
_SUM = re.compile(r"\d[^\d]*[A-Za-z][^\d]*\d")
_RELATION = re.compile(r"[<>\u2264\u2265]|\\(?:leq?|geq?|lt|gt)(?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The settings of a comparison, and what the prompt says about its answer.

    ``decimals`` is the number of places to which decimals must agree, None for the rule of ``same_number``; ``strict``
    says whether names of variables and kinds of brackets matter.
    """

    decimals: int | None = None
    strict: bool = True
    question: Question = field(default_factory=Question)

    def same(
        self, gold: Gold, text: str, answer_type: str, *, boxed: bool = True, formula: bool = True
    ) -> tuple[bool, str]:
        """Return whether an answer equals the record's, with a reason or an empty text."""
        if gold.integer is not None and (integer := plain_integer(text)) is not None:
            return integer == gold.integer, ""
        if text.strip() == gold.text:
            return True, ""
        given = spelled(unwrapped(text))
        if self.question.ordered and _FIRST_TERMS.search(self.question.text):
            given = _GOES_ON.sub("", given)
        if gold.canonical and bare_latex(given) == gold.canonical:
            return True, ""
        if answer_type == "choice":
            return option(given) == gold.option, ""
        if any(mark in given for mark in _CODE_MARKS) and _CODE.search(bare(given)):
            return False, "code in place of an answer"
        if answer_type == "text":
            expected = gold.words or words(gold.text)
            same = bare_latex(given).casefold() == gold.canonical.casefold()
            return same or (expected is not None and words(given) == expected), ""
        if answer_type in ("integer", "number"):
            return self._by_calculation(gold, given, boxed=boxed)
        if answer_type == "set":
            return self._same_set(gold, given), ""
        if not gold.prose and answer_type == "any":
            gold, given = self._without_kinds(gold, given)
        verdict = self._by_form(gold, given, answer_type)
        if verdict is not None:
            return verdict
        if answer_type == "any" and not gold.prose:
            stated = statement(given, self.question, several=_several(gold.text))
            if stated is not None and not _EQUATION.search(gold.text):
                return self._by_statement(gold, stated, boxed=boxed, formula=formula)
        if not gold.prose:
            equal = self._by_rules(gold, given) if answer_type == "any" else self._by_value(gold, given)
            if equal is not None:
                return equal, ""
        return self._by_library(gold, given, boxed=boxed, formula=boxed or formula)

    def _without_kinds(self, gold: Gold, given: str) -> tuple[Gold, str]:
        """Remove the words in front of the labels of both answers, unless they differ: a line is no segment."""
        ours = _POINT_LABEL.match(gold.text)
        other = _POINT_LABEL.match(given)
        if ours and other and _kind(ours[0]) != _kind(other[0]):
            return gold, given
        if ours:
            gold = read_gold((ours[1] or "") + gold.text[ours.end() :], self.question.options)
        return gold, given if other is None else (other[1] or "") + given[other.end() :]

    def _by_form(self, gold: Gold, given: str, answer_type: str) -> tuple[bool, str] | None:
        """Return the verdict of the rules about how an answer is written, or None."""
        listed = self._listed(gold, given) if answer_type == "any" else None
        if listed is not None:
            return listed
        named = self.strict and gold.option is None and gold.based is None and self.question.base <= 10
        if named and case_differs(gold.text, given, symbol=self.question.symbol):
            return False, "other capitals"
        if answer_type == "any" and not gold.prose:
            by_label = by_parts(gold.text, given, self._same_texts, elements)
            if by_label is not None:
                return by_label, ""
        if gold.date is not None or (gold.words is None and date(given) is not None):
            return gold.date == date(given), ""
        if _ELLIPSIS.search(_last_side(given)) and not _ELLIPSIS.search(gold.text):
            return False, "an ellipsis in place of a part"
        if _RELATION.search(given) and self.question.text and not gold.prose:
            copied = canonical(given)
            if len(copied) > 2 and copied in canonical(self.question.text):
                return False, "the task in place of its answer"
        kind = by_kind(gold.text, given, self._same_texts, self.question) if answer_type == "any" else None
        if kind is None and not gold.prose and rounded_as_asked(gold.quantity, quantity(given), self.question):
            return True, ""
        return None if kind is None else (kind, "")

    def _listed(self, gold: Gold, given: str) -> tuple[bool, str] | None:
        """Compare options by their letters."""
        if gold.option is not None and (letter := option(given)) is not None:
            return letter == gold.option, ""
        joined = self.question.options
        if not _CAPITAL.search(gold.text):
            return None
        if (letters := options(gold.text, joined=joined)) and (others := options(given, joined=joined)):
            return letters == others or (set(letters) == set(others) and not self._ordered(gold, letters)), ""
        return None

    def _ordered(self, gold: Gold, letters: tuple[str, ...]) -> bool:
        """True if the order of letters counts: in a tuple or where the prompt asks for one, but not of a selection."""
        if self.question.options:
            return self.question.ordered and list(letters) != sorted(letters)
        return self.question.ordered or letter_tuple(gold.text)

    def _same_texts(self, ours: str, theirs: str) -> bool:
        """Compare a part of the record with a part of the answer."""
        return self.same(read_gold(ours), theirs, "any")[0]

    def _by_statement(self, gold: Gold, stated: Statement, *, boxed: bool, formula: bool) -> tuple[bool, str]:
        """Compare the value of an equation; its other sides must agree: 41 = 42 is not 42."""
        if not stated.solved:
            return False, "an equation that is still to be solved"
        same, reason = self.same(gold, stated.value, "any", boxed=boxed, formula=formula)
        if not same:
            return False, reason
        value = calculated(quantity(stated.value).value)
        for side in stated.numbers:
            if _ROUNDED.fullmatch(side) or bool(based(stated.value)) != bool(based(side)):
                continue
            number = calculated(quantity(side).value)
            if number is not None and value is not None:
                agree = same_number(Literal(value, True, 99, 99), Literal(number, True, 6, 6), self.decimals)
            else:
                agree = _same_base(stated.value, side) or self._same_texts(stated.value, side)
            if not agree:
                return False, "a false equation"
        if boxed and has_letters(stated.value):
            for side in stated.expressions:
                if not self._same_texts(stated.value, side):
                    return False, "a false equation"
        return True, ""

    def _by_rules(self, gold: Gold, given: str) -> bool | None:
        """Return the verdict of the first rule for this kind of answer, or None."""
        ours = compound(gold.text) if _SUM.search(gold.text) else None
        candidate = compound(given) if _SUM.search(given) else None
        if ours is not None or candidate is not None:
            return self._by_compound(gold, given, ours, candidate)
        base = based(given)
        if self.question.base > 10 and gold.based is None and base is None and "=" not in given:
            return bare(given).upper().lstrip("0") == bare(gold.text).upper().lstrip("0")
        if gold.based is not None or base is not None:
            if gold.based is None and base is not None and base[1] == (self.question.base or 10):
                given = base[0]
                if bare(gold.text).upper() == given:
                    return True
            elif base is None and gold.based is not None and gold.based[1] == self.question.base:
                return given.strip().upper().lstrip("0") == gold.based[0].lstrip("0")
            else:
                return gold.based == base
        if gold.time is not None:
            time = clock(given)
            if time is not None:
                return same_time(gold.time, time)
            if gold.time[3] or (literal(bare(given)) is not None and "frac" not in given and "/" not in given):
                return False
        if (span := years(gold.text)) is not None and years(given) is not None:
            return span == years(given)
        if gold.words is not None and gold.literal is None:
            same = words(given) == gold.words or bool(same_compound(gold.text, given))
            same = same or same_sentence(gold.words, words(given), self.question.text)
            return same or self._begins(gold, given) or bool(equal_sets(gold.text, given, constant_of))
        verdict = self._by_value(gold, given)
        return self._by_structure(gold, given) if verdict is None else verdict

    def _begins(self, gold: Gold, given: str) -> bool:
        """True if yes or no is answered, with a sentence behind it that does not take it back."""
        if gold.words not in ("yes", "no", "true", "false"):
            return False
        reply = re.fullmatch(r"(yes|no|true|false)[,.;:]\s*([^\\$]*)", bare(given), re.IGNORECASE)
        return reply is not None and reply[1].lower() == gold.words and not re.search(r"\b(?:yes|but|or)\b", reply[2])

    def _by_compound(self, gold: Gold, given: str, ours: Any, candidate: Any) -> bool:
        """Compare sums of units of one dimension: 1 h 30 min is 90 minutes."""
        left = Quantity(str(ours[0]), ours[1]) if ours else gold.quantity
        right = Quantity(str(candidate[0]), candidate[1]) if candidate else quantity(given)
        return bool(self._equal_quantities(left, right, final=True))

    def _by_structure(self, gold: Gold, given: str) -> bool | None:
        if has_signs(gold.text) and library.read(exact(gold.text)):
            return None  # upstream reads pairs of signs
        verdict = compared(gold.text, given, self._same_texts, self.question.names)
        if verdict is None:
            verdict = equal_sets(gold.text, given, constant_of)
        if verdict is None:
            verdict = equal_formulas(gold.text, given)
        if verdict is None:
            verdict = same_compound(gold.text, given)
        return by_lists(gold.text, given, self._same_texts, self.question) if verdict is None else verdict

    def _by_value(self, gold: Gold, given: str) -> bool | None:
        return self._measured(gold, given, final=False)

    def _measured(self, gold: Gold, given: str, *, final: bool) -> bool | None:
        """Compare units and written-out numbers; None (or False if ``final``) if an answer is not written out."""
        named = given if "=" in gold.text else NAMED.sub("", given)
        single = re.fullmatch(r"\s*\[([^,\[\]]*)\]\s*", named)
        answer = quantity(single[1] if single and not gold.text.startswith("[") else named)
        comma = re.fullmatch(r"([+-]?\d+),(\d+)", named.strip())
        if gold.literal is not None and comma and (gold.literal.decimal or gold.literal.value.denominator > 1):
            readings = (literal(f"{comma[1]}.{comma[2]}"), literal(named))  # 1,200 is 1.2 to some and 1200 to others
            return any(number is not None and same_number(gold.literal, number, self.decimals) for number in readings)
        return self._equal_quantities(gold.quantity, answer, final=final)

    def _equal_quantities(self, gold: Quantity, given: Quantity, *, final: bool) -> bool | None:
        pair = measured(gold, given, self.question.unit)
        if pair.excluded:
            return False
        ours = literal(bare(gold.value))
        candidate = literal(bare(given.value))
        if ours is not None and candidate is not None:
            return equal_literals(pair, ours, candidate, self.decimals)
        return False if final else equal_expressions(pair, self.decimals)

    def _by_calculation(self, gold: Gold, given: str, *, boxed: bool) -> tuple[bool, str]:
        """Compare a number, or an equation of calculations whose value it is: 3 + 8 = 10 is not 10."""
        if "=" in gold.text or (stated := statement(given, self.question, several=False)) is None:
            return bool(self._measured(gold, given, final=True)), ""
        if not stated.solved or not self._measured(gold, stated.value, final=True):
            return False, ""
        values = [calculated(quantity(side).value) for side in stated.numbers]
        expected = gold.literal or Literal(Fraction(0))
        rounded = replace(expected, decimal=True, places=99, digits=99)
        if not all(
            value is None or same_number(rounded, Literal(value, True, 6, 6), self.decimals) for value in values
        ):
            return False, "a false equation"
        return not boxed or None not in values, ""

    def _same_set(self, gold: Gold, given: str) -> bool:
        """True if each element of one set equals an element of the other, in any order."""
        expected = elements(gold.text)
        result = elements(given)
        return all(any(self._same_texts(a, b) for b in result) for a in expected) and all(
            any(self._same_texts(b, a) for b in expected) for a in result
        )

    def _by_library(self, gold: Gold, given: str, *, boxed: bool, formula: bool) -> tuple[bool, str]:
        expected_text, given = self._comparable(gold, given)
        if self.strict and _other_brackets(expected_text, given):
            return False, "other brackets"
        expected = library.read(expected_text)
        if (rounded := self._by_rounding(expected_text, given)) is not None:
            return rounded, ""
        readings = library.parse(given, boxed=True)
        if not formula and not self._equal(expected, readings):  # a sentence: let upstream search it
            readings = library.parse(given, boxed=False)
        if not readings:
            return False, "the answer is not understood as mathematics"
        if not self._equal(expected, readings):
            beyond = boxed and not gold.prose and equal_beyond_algebra(expected_text, given, self.question)
            return beyond or (boxed and equal_curves(expected_text, given)), ""
        if "=" not in gold.text and not self._equations_hold(expected, given, readings):
            return False, "a false equation"
        return True, ""

    def _by_rounding(self, gold: str, given: str) -> bool | None:
        """Compare a decimal with an exact constant; None unless one is a decimal and the other a constant."""
        if self.decimals is not None:
            return None
        for decimal, other in ((gold, given), (given, gold)):
            number = literal(bare(decimal))
            if number is not None and number.decimal and _FORMULA.search(other) and not has_letters(other):
                value = library.constant(other)
                if value is not None:
                    return number.value == value or rounds(number, value)
        return None

    def _equal(self, expected: Any, readings: Any) -> bool:
        return library.equal(expected, readings, self.decimals, strict=self.strict)

    def _comparable(self, gold: Gold, given: str) -> tuple[str, str]:
        """Return both texts without units, as the library reads them best."""
        if gold.prose:
            return gold.text, given
        expected = gold.text
        if bool(_MEMBER.search(expected)) != bool(_MEMBER.search(given)):
            expected = _MEMBER.sub("", expected)
            given = NAMED.sub("", _MEMBER.sub("", given))
        ours = _FUNCTION.match(expected)
        candidate = _FUNCTION.match(given)
        if ours and candidate:
            expected = _FUNCTION.sub("", expected)
            given = _FUNCTION.sub("", given)
            if ours[1] and candidate[1] and ours[1] != candidate[1]:
                given = re.sub(rf"(?<![a-zA-Z\\]){candidate[1]}(?![a-zA-Z])", ours[1], given)
            return for_library(expected), for_library(given)
        answer = quantity(given)
        if gold.quantity.unit != PERCENT and answer.unit != PERCENT:
            expected = gold.quantity.value or expected
            given = answer.value
        expected, given = written_out(expected, given)
        return for_library(expected), for_library(given)

    def _equations_hold(self, expected: tuple[Any, ...], given: str, readings: list[Any]) -> bool:
        sides = library.unequal_sides(given)
        if sides is not None:
            left = library.parse(sides[0], boxed=True)
            if not library.equal(expected, left, self.decimals, strict=True):
                return False
        return all(library.chain_holds(expression, self.decimals) for expression in readings)


def _kind(label: str) -> str:
    """Return the last word in front of a label, in lower case: ``point``."""
    return re.findall("[a-z]+", label.lower())[-1]


def _same_base(text: str, other: str) -> bool:
    """True if two numbers that name their bases have one value."""
    ours = based(text)
    candidate = based(other)
    return ours is not None and candidate is not None and int(*ours) == int(*candidate)


def _several(text: str) -> bool:
    """True if a record's answer may be a list of values."""
    return len(elements(text)) > 1 or has_signs(text)


def _last_side(text: str) -> str:
    """Return the text behind the last equals sign, without decimals that go on."""
    return _ROUNDED.sub("", text.rpartition("=")[2])


def _other_brackets(gold: str, given: str) -> bool:
    """True if a set, or a list without brackets, answers a point or interval."""
    if not re.fullmatch(r"\s*[(\[][^()\[\]{}]*,[^()\[\]{}]*[)\]]\s*", gold):
        return False
    return bool(re.fullmatch(r"\s*\\\{.*\\\}\s*|[^()\[\]{}=<>]*,[^()\[\]{}=<>]*", given))
