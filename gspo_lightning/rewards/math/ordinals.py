r"""Places in a row: ``the 20th century`` is ``the twentieth century``, and quadrant ``IV`` the fourth quadrant."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.question import Question

_WORDS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth", "twenty-first",
)  # fmt: skip
_ROMAN = (
    "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV", "XVI", "XVII",
    "XVIII", "XIX", "XX", "XXI",
)  # fmt: skip
_PLAIN = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textrm|mbox)\s*\{|[{}$^.]|\\[,;:! ]|~")
_PLACE = re.compile(rf"(?:the )?(?:(\d{{1,4}})(?:st|nd|rd|th)|({'|'.join(_WORDS)}))(?: ([a-z]+))?")
_NUMBERED = re.compile(rf"(?:the )?([a-z]+) (\d{{1,4}}|{'|'.join(_ROMAN)})", re.IGNORECASE)
_QUADRANT = re.compile(r"\bquadrant\b", re.IGNORECASE)
_LONGEST = 60

Place = tuple[int, str]
"""A number, and the noun that is numbered or an empty text."""


def equal_places(gold: str, given: str, question: Question) -> bool | None:
    r"""Compare two places in a row; None if one is none. A noun on one side only says nothing.

    >>> equal_places(r"20\text{th century}", r"\text{the twentieth century}", Question())
    True
    >>> equal_places("IV", r"\text{Quadrant II}", Question("In which quadrant?"))
    False
    """
    quadrant = _QUADRANT.search(question.text) is not None
    ours = place(gold, quadrant=quadrant)
    candidate = place(given, quadrant=quadrant) if ours else None
    if quadrant and ours and candidate is None and re.fullmatch("[IVX]+", _PLAIN.sub("", given).strip()):
        return False  # VI is no product of V and I
    if ours is None or candidate is None:
        return None
    return ours[0] == candidate[0] and (not ours[1] or not candidate[1] or ours[1] == candidate[1])


def place(text: str, *, quadrant: bool = False) -> Place | None:
    """Return the number and the noun of a place in a row; None if a text is none.

    Args:
        text: an answer.
        quadrant: the prompt asks for a quadrant, so that a number alone is one.
    """
    plain = " ".join(_PLAIN.sub(" ", text).replace("^", "").split())
    plain = re.sub(r"(?<=\d) (?=(?:st|nd|rd|th)\b)", "", plain)
    if len(plain) > _LONGEST:
        return None
    if match := _PLACE.fullmatch(plain.lower()):
        number = int(match[1]) if match[1] else _WORDS.index(match[2]) + 1
        return number, match[3] or ""
    if quadrant and re.fullmatch(rf"[1-4]|{'|'.join(_ROMAN[:4])}", plain):
        return (int(plain) if plain.isdigit() else _ROMAN.index(plain) + 1), "quadrant"
    if (match := _NUMBERED.fullmatch(plain)) and match[1].lower() == "quadrant":
        return (int(match[2]) if match[2].isdigit() else _ROMAN.index(match[2].upper()) + 1), "quadrant"
    return None
