r"""Answers made of words, and the letters of options.

Names of several letters are words: ``BADC`` is not ``ABCD``, ``stop`` is not ``pots``. Two letters, or three
consecutive letters of the alphabet (``abc``, ``xyz``), are products.
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mathit|mbox|textrm|textnormal|operatorname)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z\s.,;:'\u2019&!_-]*")
_DATE = re.compile(
    r"(?=.*\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\b)[A-Za-z0-9\s.,-]+", re.IGNORECASE
)
_MATH = re.compile(
    r"(?<![A-Za-z])(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infinity|infty|mod|max|min|det|theta)(?![A-Za-z])"
)
_OPTION = re.compile(r"\(?\s*\[?\s*([A-Ja-j])\s*\]?\s*(?:[).:\]]\s*(.*)|)", re.DOTALL)
_MORE = re.compile(
    r"(?<![A-Za-z(\\])\(?[A-J]\s*(?:[).\]](?![A-Za-z0-9])|:(?!\s*[A-J]\b))|\b(?:or|and)\b\s*\(?[A-J]\b|[,;/]\s*\(?[A-J]\)?\s*$"
)
"""A second option behind the first one."""
_ARTICLES = {"a", "an", "the"}
_EMPTY = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty ?set|\\emptyset|\\\{\s*\\\}|\{\s*\}", re.IGNORECASE
)


def words(text: str) -> str | None:
    r"""Return the words of a text, in lower case and without articles; None if it is not made of words.

    >>> words(r"\text{An Ellipse}"), words("BADC"), words("xyz"), words("2ab")
    ('ellipse', 'badc', None, None)
    """
    plain = _TEXT.sub(lambda m: f" {m[1]} ", text)
    wrapped = plain != text
    plain = re.sub(r"\\[,;:! ]|~|[$*]", " ", plain).strip().rstrip(".")
    if _EMPTY.fullmatch(plain.strip()):
        return "\\emptyset"
    if _DATE.fullmatch(plain):
        return " ".join(
            sorted(re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", t) for t in re.findall(r"[a-z0-9]+", plain.lower()))
        )
    if not _WORDS.fullmatch(plain) or _MATH.search(plain):
        return None
    found: list[str] = re.findall(r"[a-z]+(?:['\u2019_-][a-z]+)*", plain.lower())
    if not any(len(w) > 1 for w in found) or not (wrapped or any(map(_is_word, plain.split()))):
        return None
    kept = [w for w in found if w not in _ARTICLES] if len(found) > 1 else found
    return " ".join(kept)


def _is_word(token: str) -> bool:
    letters = re.sub(r"[^A-Za-z]", "", token)
    if letters.lower() in ("no", "on"):
        return True
    if len(letters) < 3:
        return False
    codes = sorted(map(ord, letters))
    product = len(letters) == 3 and letters.islower() and codes == list(range(codes[0], codes[0] + 3))
    return not product


def option(text: str) -> str | None:
    r"""Return the letter of the option that a text names, with or without the option's text; None if it names none.

    >>> option(r"\textbf{(A) }42"), option("(b)"), option("B: 42"), option("Carbon"), option("A, B")
    ('A', 'B', 'B', None, None)
    """
    plain = re.sub(r"\s+", " ", re.sub(r"\\[,;:! ]|\\quad|~", " ", _TEXT.sub(lambda m: m[1], text))).strip(" $*")
    plain = re.sub(r"^(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?\s*:?\s*", "", plain, flags=re.IGNORECASE)
    match = _OPTION.fullmatch(plain)
    if match is None:
        return None
    rest = match[2] or ""
    if _MORE.search(rest):
        return None
    return match[1].upper()


def options(text: str) -> frozenset[str] | None:
    r"""Return the letters of a list of two or more options, all of which are named; None for anything else.

    >>> sorted(options(r"\text{A and C}") or ()), sorted(options("(A), (C)") or ()), options("A or C"), options("AC")
    (['A', 'C'], ['A', 'C'], None, None)
    """
    plain = re.sub(r"\\[,;:! ]|\\quad|~", " ", _TEXT.sub(lambda m: m[1], text)).strip(" $*.")
    letters = [
        re.fullmatch(r"\s*\(?\s*([A-J])\s*\)?\s*", piece) for piece in re.split(r",\s*and\b|,|;|&|\band\b", plain)
    ]
    return frozenset(letter[1] for letter in letters if letter) if len(letters) > 1 and all(letters) else None
