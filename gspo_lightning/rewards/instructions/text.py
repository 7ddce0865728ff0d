"""Text statistics: words, sentences, paragraphs, and the language of a text."""

from __future__ import annotations

import functools
import importlib.util
import re

from gspo_lightning.errors import UserError

_WORD = re.compile(r"\w+")
_CHUNK = re.compile(r"[^\W_]+(?:[-.'\u2019&/][^\W_]+)*")
_END = re.compile(
    r"(?P<mark>[.!?\u2026]+)[\"'\u201d\u2019)\]*_]*(?=\s|$)|(?P<wide>[\u3002\uff01\uff1f\u0964]+[\u300d\u300f\u201d\"]*)"
)
_ABBREVIATIONS = frozenset(
    (
        "mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "gen", "rep", "sen", "rev", "hon", "capt", "col", "lt",
        "vs", "e.g", "i.e", "cf", "al", "fig", "no", "vol", "pp", "approx", "u.s", "u.k", "a.m", "p.m",
    )
)  # fmt: skip
"""Abbreviations that take a full stop in mid-sentence; in lower case, without the last full stop."""


def words(text: str) -> list[str]:
    """Return the runs of letters, digits and underscores, as IFEval counts them.

    >>> words("It's 3.5 well-kept")
    ['It', 's', '3', '5', 'well', 'kept']
    """
    return _WORD.findall(text)


def capital_words(text: str) -> list[str]:
    """Return words in capitals only; hyphens, full stops or apostrophes join a word, and digits alone are no word.

    >>> capital_words("I saw the WELL-KNOWN U.S. base of NASA, 42 K and Mac")
    ['I', 'WELL-KNOWN', 'U.S', 'NASA', 'K']
    """
    return [chunk for chunk in _CHUNK.findall(text) if chunk.isupper()]


def count_sentences(text: str) -> int:
    """Count sentences by their final marks; text after the last mark is one more.

    A full stop after an abbreviation, an initial or a list number ends no sentence, nor does one before a small letter.

    >>> count_sentences("Dr. J. Smith paid 3.50 dollars, i.e. too much. Why? He said: \\"Go!\\" and went.")
    3
    """
    found, start = 0, 0
    for match in _END.finditer(text):
        if match["mark"] and not _ends(text, match):
            continue
        found += bool(_WORD.search(text, start, match.end()))
        start = match.end()
    return found + bool(_WORD.search(text, start))


def _ends(text: str, match: re.Match[str]) -> bool:
    after = text[match.end() : match.end() + 40].lstrip()
    if after[:1].islower():
        return False
    if match["mark"] != "." or not after:
        return True
    line = text[max(0, match.start() - 20) : match.start()].rpartition("\n")[2]
    before = line.split()[-1].lstrip("(\"'*\u201c\u2018") if line.split() else ""
    number = before.isdigit() and line.strip() == before and "\n" not in text[match.end() : match.end() + 1]
    initial = len(before) == 1 and before.isupper() and before != "I"
    return not (number or initial or before.lower() in _ABBREVIATIONS)


def paragraphs(text: str) -> list[str]:
    """Split a text at empty lines, as IFEval does; empty paragraphs are included."""
    return text.split("\n\n")


def check_installed() -> None:
    """Check that the package for language detection is installed.

    Raises:
        UserError: it is not.
    """
    if importlib.util.find_spec("py3langid") is None:
        raise UserError(
            "IFVerifier",
            "tells languages apart with py3langid, which is not installed",
            fix="pip install 'gspo_lightning[instructions]'",
        )


@functools.cache
def load_languages() -> frozenset[str]:
    """Return the ISO 639-1 codes of the languages that can be detected; loads the model once."""
    from py3langid import langid

    return frozenset(code for code, _ in langid.rank("all of them"))


def language_of(text: str) -> str | None:
    """Return the code of the most likely language of a text; None if it has no letters.

    >>> language_of("42 :-)")
    """
    if not any(c.isalpha() for c in text):
        return None
    from py3langid import langid

    return str(langid.classify(text)[0])
