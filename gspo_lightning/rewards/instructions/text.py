"""Text statistics: words, paragraphs, and the language of a text."""

from __future__ import annotations

import functools
import importlib.util
import re
import unicodedata
from collections import Counter

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.extras import install_command

_WORD = re.compile(r"\w+")
_CHUNK = re.compile(r"[^\W_]+(?:[-.'\u2019&/][^\W_]+)*")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HALFWIDTH", "BOPOMOFO")
"""First words of the names of characters that are written together."""


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
            fix=install_command("instructions"),
        )


@functools.cache
def load_languages() -> frozenset[str]:
    """Return the ISO 639-1 codes of the languages that can be detected; loads the model once."""
    from py3langid import langid

    return frozenset(code for code, _ in langid.rank("all of them"))


def language_of(text: str) -> str | None:
    """Return the code of the most likely language of a text; None if it has no letters.

    That is the language of its letters in the script of most of them, where a wide letter (an ideograph) counts twice.
    A few words in a script of its own do not make a text theirs.

    >>> language_of("42 :-)")
    """
    counts = Counter(text)
    letters = Counter[str]()
    for character, count in counts.items():
        if character.isalpha():
            wide = unicodedata.east_asian_width(character) in ("W", "F")
            letters[script_of(character)] += 2 * count if wide else count
    if not letters:
        return None
    main = max(letters, key=lambda script: letters[script])
    others = {ord(character): " " for character in counts if script_of(character) not in ("", main)}
    from py3langid import langid

    return str(langid.classify(text.translate(others) if others else text)[0])


@functools.lru_cache(maxsize=4096)
def script_of(character: str) -> str:
    """Return the script of a letter or of a mark on one; "" for all else, and for marks of any script.

    >>> script_of("a"), script_of("\u0e01"), script_of("\u4eca") == script_of("\u3042"), script_of("7")
    ('LATIN', 'THAI', True, '')
    """
    if unicodedata.category(character)[0] not in "LM":
        return ""
    first = unicodedata.name(character, "").partition(" ")[0]
    if first in ("COMBINING", "MODIFIER"):
        return ""
    if first in _EAST_ASIAN:
        return "EAST ASIAN"
    return "LATIN" if first == "FULLWIDTH" else first
