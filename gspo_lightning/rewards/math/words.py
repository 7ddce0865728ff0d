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
_OPTION = re.compile(
    r"(\(?\s*\[?)\s*([A-Za-z])\s*\]?\s*(?:[).:\]]\s*(.*)|,\s*(?:i\.?\s?e\.?|that is|which is|namely|because"
    r"|since)\b(.*)|\s+(?:because|since)\b(.*)|)",
    re.DOTALL,
)
_MORE = re.compile(
    r"(?<![A-Za-z(\\])\(?[A-J]\s*(?:[).\]](?![A-Za-z0-9])|:(?!\s*[A-J]\b))|\b(?:or|and)\b\s*\(?[A-J]\b"
    r"|[,;/]\s*\(?[A-J]\)?\s*$"
)
"""A second option behind the first one."""
_ARTICLES = {"a", "an", "the"}
_EMPTY = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?|(?:the )?empty ?set|\\emptyset|\\\{\s*\\\}|\{\s*\}",
    re.IGNORECASE,
)


_WEEKDAY = re.compile(r"\b(mon|tue|wed|thu|fri|sat|sun)(?:s|rs?|nes|urs?)?(?:day)?\b")
_SAME = (
    (
        re.compile(r"(?:the |this |it )?(?:limit |value )?(?:dne|does not exist|doesn['\u2019]t exist|do not exist)"),
        "does not exist",
    ),
    (
        re.compile(
            r"(?:there (?:is|are) )?(?:infinitely many|an? infinite number of|infinite)(?: solutions"
            r"| answers| values| roots| points)?"
        ),
        "infinitely many",
    ),
    (re.compile(r"(?:there (?:is|are) )?(?:none|nothing)(?: of (?:them|these|the above))?"), "none"),
    (
        re.compile(r"all (?:the )?real(?: numbers| values)?|all reals|every real number|any real number|r"),
        "all real numbers",
    ),
)
"""Phrases of one meaning, and the words that stand for it."""
_NEGATED = {
    "discontinuous": "continuous", "inconsistent": "consistent", "irrational": "rational", "unbounded": "bounded",
    "dependent": "independent", "invalid": "valid", "divergent": "convergent", "diverges": "converges",
    "diverge": "converge", "insoluble": "soluble", "unsolvable": "solvable", "nonsingular": "singular",
    "noninvertible": "invertible", "false": "true", "incorrect": "correct", "untrue": "true",
}  # fmt: skip
"""Adjectives and verbs that mean "not" and another one."""
_NOT = re.compile(rf"\b(?:(?:does|do) )?not ({'|'.join(set(_NEGATED.values()) | set(_NEGATED))})\b")
_OPPOSITES = {positive: negative for negative, positive in reversed(_NEGATED.items())}


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
        return " ".join(sorted(_of_date(t) for t in re.findall(r"[a-z0-9]+", plain.lower()) if t not in ("of", "the")))
    if not _WORDS.fullmatch(plain) or _MATH.search(plain):
        return None
    tokens: list[str] = re.findall(r"[a-z]+(?:['\u2019_-][a-z]+)*", plain.lower())
    if not any(len(token) > 1 for token in tokens) or not (wrapped or any(map(_is_word, plain.split()))):
        return None
    kept = [token for token in tokens if token not in _ARTICLES] if len(tokens) > 1 else tokens
    phrase = _WEEKDAY.sub(r"\1", " ".join(kept))
    phrase = _NOT.sub(_without_not, phrase)
    return next((meaning for pattern, meaning in _SAME if pattern.fullmatch(phrase)), phrase)


def _without_not(match: re.Match[str]) -> str:
    """Return one word for "not" and a word that has an opposite."""
    word = match[1]
    return _NEGATED[word] if word in _NEGATED else _OPPOSITES.get(f"{word}s", _OPPOSITES[word])


def _of_date(token: str) -> str:
    """Return a day without its ending, a month by its first three letters."""
    month = re.fullmatch(r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*", token)
    return month[1] if month else re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", token)


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
    if match is None or _MORE.search(match[3] or match[4] or match[5] or ""):
        return None
    return match[2].upper()


def only_option(text: str) -> str | None:
    """Return the letter of a text that is nothing but the letter of an option: ``B``, ``(b)``, ``K)``; else None.

    A letter without parentheses must be one of A to J: others are names.

    >>> only_option("B"), only_option("(b)"), only_option("(K)"), only_option("x"), only_option("(A) 42")
    ('B', 'B', 'K', None, None)
    """
    plain = _TEXT.sub(lambda m: m[1], text).strip(" $*.")
    match = re.fullmatch(r"\(\s*([A-Za-z])\s*\)|([A-Z])\s*[).:]|([A-J])", plain)
    return next(group for group in match.groups() if group).upper() if match else None


def options(text: str, *, joined: bool = False) -> tuple[str, ...] | None:
    r"""Return the letters, in order, of a list of two or more options that names them all; None for anything else.

    Args:
        text: the list.
        joined: the letters may stand side by side, in the order of the alphabet: ``AC``.

    >>> options(r"\text{A and C}"), options("(C), (A)"), options("A or C"), options("AC")
    (('A', 'C'), ('C', 'A'), None, None)
    """
    plain = re.sub(r"\\[,;:! ]|\\quad|~", " ", _TEXT.sub(lambda m: m[1], text)).strip(" $*.")
    if joined and re.fullmatch("[A-J]{2,10}", plain):
        return tuple(plain) if sorted(set(plain)) == list(plain) else None
    letters = [
        re.fullmatch(r"\s*\(?\s*([A-J])\s*\)?\s*", piece) for piece in re.split(r",\s*and\b|,|;|&|\band\b", plain)
    ]
    return tuple(letter[1] for letter in letters if letter) if len(letters) > 1 and all(letters) else None


def letter_tuple(text: str) -> bool:
    r"""True for letters in one pair of parentheses, whose order counts unless options are listed.

    >>> letter_tuple(r"\text{(A, C, B)}"), letter_tuple("(A), (C)"), letter_tuple("A, C")
    (True, False, False)
    """
    plain = _TEXT.sub(lambda m: m[1], text).strip(" $*.")
    return re.fullmatch(r"\(\s*[A-J](?:\s*,\s*[A-J])+\s*\)", plain) is not None


_SHORT_WORDS = {
    "no", "yes", "on", "up", "in", "at", "by", "to", "of", "or", "not", "all", "any", "odd", "one", "two", "six", "ten",
    "red", "tie", "win", "due", "day", "man", "old", "new", "low", "big", "hot", "dry", "wet", "jan", "feb", "mar",
    "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "mon", "tue", "wed", "thu", "fri", "sat", "sun",
}  # fmt: skip
_NAMES = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")


def case_differs(gold: str, given: str, *, symbol: bool = False) -> bool:
    r"""True if two texts differ in capitals that mean something; all other differences are left to others.

    Capitals mean nothing in words of four letters or more, in three-letter words that are small or begin with a
    capital, and in a few short words; they do in every other name, and in LaTeX's commands.

    Args:
        gold: a text.
        given: another.
        symbol: the answer is a symbol of chemistry or genetics: ``NO`` is not ``No``, ``AABB`` not ``aabb``.

    >>> case_differs("Aa", "aa"), case_differs("Monday", "monday"), case_differs(r"\Theta", r"\theta")
    (True, False, True)
    """
    ours = _NAMES.findall(gold)
    others = _NAMES.findall(given)
    if len(ours) != len(others) or any(a.lower() != b.lower() for a, b in zip(ours, others, strict=True)):
        return False
    alone = len(ours) == 1
    return any(a != b and _counts(a, b, symbol=symbol, alone=alone) for a, b in zip(ours, others, strict=True))


def _counts(a: str, b: str, *, symbol: bool, alone: bool) -> bool:
    if a.startswith("\\"):
        return True
    if a.lower() in _ARTICLES and not alone:
        return False
    plain = all(word.islower() or word.istitle() or word.isupper() for word in (a, b))
    capitals = a.isupper() or b.isupper()
    if symbol and (len(a) < 4 or capitals):
        return True
    if len(a) >= 4:
        return not plain
    return not plain or ((capitals or len(a) < 3) and a.lower() not in _SHORT_WORDS)
