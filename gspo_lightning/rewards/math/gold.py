r"""Reference answers of records, parsed once: the kind of an answer, or the fact that it is unreadable.

The kinds are tried from the plainest to the most general; only the last one, mathematics, needs the library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal as OneOf

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.bases import based
from gspo_lightning.rewards.math.chemistry import compound as substance
from gspo_lightning.rewards.math.kinds import is_of_a_kind
from gspo_lightning.rewards.math.lists import vector
from gspo_lightning.rewards.math.notation import bare_latex, in_latex, unwrapped
from gspo_lightning.rewards.math.numbers import Literal, literal, plain_integer
from gspo_lightning.rewards.math.numerals import in_digits
from gspo_lightning.rewards.math.parts import parts
from gspo_lightning.rewards.math.propositions import formula
from gspo_lightning.rewards.math.structure import has_structure
from gspo_lightning.rewards.math.times import Date, Time, clock, date
from gspo_lightning.rewards.math.units import NOTHING, Quantity, quantity
from gspo_lightning.rewards.math.words import only_option, option, options, words

AnswerType = OneOf["any", "integer", "number", "expression", "choice", "set", "text"]
ANSWER_TYPES: tuple[AnswerType, ...] = ("any", "integer", "number", "expression", "choice", "set", "text")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|textrm)\s*\{([^{}]*)\}")
_PLAIN = re.compile(
    r"(?:[A-Za-z0-9+\-*/^()=,.{}\[\]_ |<>!]|\\(?:frac|sqrt|pi|infty|cdot|times|text|sin|cos|tan|log|ln|le|ge|leq|geq|"
    r"in|cup|theta|alpha|beta|emptyset|\{|\}|,|;|!|\s)(?![a-zA-Z]))+"
)
"""Text that the library certainly reads if its braces match; equal text then needs no parsing."""


_PICTURE = re.compile(r"\\includegraphics|!\[[^\]]*\]\(|\\begin\{(?:tikzpicture|asy)\}|\[asy\]|\.(?:png|jpe?g|svg)\b")
_MOST_WORDS = 40
"""Words of an answer above which it is a text that nobody repeats."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The reference answer of a record.

    ``text`` is in LaTeX's spelling; ``prose`` says that mathematics is embedded in it. Each other field is set if the
    answer can be read that way.
    """

    text: str
    canonical: str
    prose: bool = False
    option: str | None = None
    based: tuple[str, int] | None = None
    time: Time | None = None
    date: Date | None = None
    words: str | None = None
    quantity: Quantity = NOTHING
    literal: Literal | None = None
    integer: int | None = None

    @property
    def plain(self) -> bool:
        """True if the answer is read without the library."""
        return any(x is not None for x in (self.option, self.based, self.time, self.date, self.words, self.literal))

    @property
    def readable(self) -> bool:
        """True if anything can be compared with the answer; asks the library if necessary."""
        if self.plain or options(self.text) is not None or bool(_PLAIN.fullmatch(self.text) and _balanced(self.text)):
            return True
        kinds = (has_structure, parts, vector, formula, substance, is_of_a_kind)
        if not self.prose and any(kind(self.text) for kind in kinds):
            return True
        return bool(library.read(self.text))


def _balanced(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("{}", "()")) and text[-1:] not in "+-*/^=_\\"


@lru_cache(maxsize=512)
def read_gold(answer: str, listed: bool = False) -> Gold:
    """Parse a record's answer: the text after ``####`` if there is one (as in GSM8K), without its box.

    Args:
        answer: the answer, as the record has it.
        listed: the prompt lists options, so that a letter in front of a text is that of an option.
    """
    text = answer.rsplit("####", 1)[-1].strip()
    text = unwrapped(text)
    if text.startswith("\\boxed{") and text.endswith("}") and text.count("\\boxed") == 1:
        text = unwrapped(text[len("\\boxed{") : -1])
    rest = text.replace("\\$", "")
    prose = "\\boxed" in text or "\\(" in rest or "\\[" in rest or rest.count("$") > 1 or "\n" in rest
    text = spelled(text)
    label = _label(text, listed)
    if prose:
        return Gold(text, bare_latex(text), prose=True, option=label)
    measured = quantity(text)
    return Gold(
        text, bare_latex(text), False, label, based(text), clock(text), date(text), words(text), measured,
        literal(bare(measured.value)), plain_integer(text),
    )  # fmt: skip


def bare(text: str) -> str:
    r"""Remove the font commands around the parts of a text."""
    return _TEXT.sub(lambda m: m[1], text).strip()


@lru_cache(maxsize=256)  # an answer is spelled for its comparison and for its form
def spelled(text: str) -> str:
    r"""Convert a text to LaTeX's spelling with its numbers in digits; words that go on stay words.

    >>> spelled("x = 1 1/2"), spelled("Seven Samurai"), spelled("seven")
    ('x = \\frac{3}{2}', 'Seven Samurai', '7')
    """
    text = in_latex(text)
    if literal(text) is not None and not text.isalpha():
        return text
    digits = in_digits(text)
    return text if digits != text and words(text) is not None and quantity(digits).words else digits


def _label(text: str, listed: bool) -> str | None:
    """Return a record's option: a letter and nothing else, or, if options are listed, the letter in front of a text."""
    plain = bare(text)
    if re.match(r"[a-z](?![a-zA-Z])", plain):
        return None
    if not listed:
        return only_option(text)
    if (label := option(text)) is not None:
        return label
    letter = re.search(r"(?:^|\n)\s*(?:\(([A-J])\)|([A-J]))\s+[A-Z][a-z]+", plain)
    return (letter[1] or letter[2]) if letter else None


def refusal(gold: Gold, answer_type: str) -> str | None:
    """Return why a record cannot be judged, or None."""
    if not gold.text:
        return "the record's answer is empty"
    if answer_type in ("integer", "number"):
        fits = gold.literal is not None and (answer_type == "number" or gold.literal.value.denominator == 1)
        return None if fits else f"the record's answer is no {answer_type}: {gold.text[:80]!r}"
    if answer_type == "choice":
        return None if gold.option else f"the record's answer is no option: {gold.text[:80]!r}"
    if answer_type == "text":
        return None
    kind = _incomparable(gold)
    if kind is None:
        return None
    return f"the record's answer cannot be read as mathematics or words ({kind}): {gold.text[:80]!r}"


def _incomparable(gold: Gold) -> str | None:
    """Return the kind of a record's answer that nothing but its own wording equals, or None."""
    if _PICTURE.search(gold.text):
        return "a picture"
    words_only = not gold.prose and "\\boxed" not in gold.text and re.search(r"[a-z]{3,} [a-z]{2,} [a-z]", gold.text)
    if words_only and len(gold.text.split()) > _MOST_WORDS:
        return f"a text of more than {_MOST_WORDS} words"
    if gold.readable:
        return None
    if not all(gold.text.count(a) == gold.text.count(b) for a, b in ("{}", "()", "[]")):
        return "brackets that do not match"
    if re.search(r"\\[lc]?dots|\.\.\.|\u2026", gold.text):
        return "an ellipsis"
    if re.search(r"\\(?:subset|supset|perp|parallel|cong|sim|mid|in|forall|exists)", gold.text):
        return "a statement"
    return "a notation that is not known"
