"""Sentences of a text: which marks end one, and which belong to an abbreviation."""

from __future__ import annotations

import re

_END = re.compile(
    r"(?P<mark>[.!?\u2026]+)(?P<close>[\"'\u201d\u2019\u00bb)\]*_]*)(?=\s|$)"
    r"|(?P<alone>[\u037e\u0589\u061f\u06d4\u0964\u0965\u0df4\u0f0d\u104b\u1362\u1367\u17d4\u17d5\u203c\u203d\u2047-\u2049"
    r"\u2e2e\u3002\uff01\uff0e\uff1f\uff61]+[\u300d\u300f\u201d\"]*)"
)
r"""``alone``: the marks of scripts without capitals, which end a sentence wherever they stand."""
_WORD = re.compile(r"\w+")
_OPENING = "([\"'*_\u201c\u2018\u00ab"
_LISTED = re.compile(r"\d+|[IVXLC]{2,}\b|[B-HJ-Z]\b")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_CONTINUE = frozenset(("vs", "e.g", "i.e", "cf", "approx", "ca", "viz", "resp", "esp", "incl", "z.b", "d.h"))
"""Abbreviations in front of what they are about, which end no sentence."""
_TITLES = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "rev", "hon", "capt", "col", "lt", "gen", "sgt", "gov", "sen", "rep", "pres")
)
"""Abbreviations in front of a name, and capitalised as it is: "Gen. Lee", but "Ask the gen. He knows."."""
_NUMBERED = frozenset(("no", "nos", "vol", "fig", "figs", "ch", "sec", "eq", "art", "p", "pp"))
"""Abbreviations in front of a number: "No. 5", but "No. That was bad."."""
_MONTHS = frozenset(("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"))
_CLOSING = frozenset(("etc", "inc", "ltd", "corp", "co", "dept", "est"))
"""Abbreviations that end a sentence before a capital."""
_NAMES = frozenset(("jr", "sr", "st", "mt", "al"))
"""Abbreviations within names and phrases."""
_TIMES = frozenset(("a.m", "p.m"))
_TIME_GOES_ON = frozenset(
    (
        "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "mon", "tue", "wed", "thu", "fri",
        "sat", "sun", "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
        "november", "december", "est", "edt", "cst", "cdt", "mst", "mdt", "pst", "pdt", "gmt", "utc", "cet", "eastern",
        "central", "mountain", "pacific", "et", "pt", "ct",
    )
)  # fmt: skip
_STARTERS = frozenset(
    (
        "a", "after", "all", "although", "an", "and", "another", "as", "at", "because", "before", "both", "but", "by",
        "did", "do", "does", "each", "even", "every", "everybody", "everyone", "everything", "few", "finally", "first",
        "for", "from", "had", "has", "have", "he", "her", "here", "his", "how", "however", "i", "if", "in", "is", "it",
        "its", "later", "let", "many", "maybe", "meanwhile", "most", "my", "next", "no", "nobody", "not", "nothing",
        "now", "on", "once", "one", "or", "other", "others", "our", "people", "perhaps", "please", "she", "since", "so",
        "some", "soon", "still", "such", "that", "the", "their", "then", "there", "therefore", "these", "they", "this",
        "those", "though", "thus", "to", "today", "until", "was", "we", "were", "what", "when", "where", "which",
        "while", "who", "why", "with", "yes", "yesterday", "yet", "you", "your",
    )
)  # fmt: skip
"""Words that begin a sentence if they are capitalised after an abbreviation: no name has them."""
_LABELLED = frozenset(
    (
        "a", "an", "the", "answer", "block", "class", "column", "exhibit", "gate", "grade", "group", "hepatitis",
        "item", "letter", "level", "option", "part", "phase", "plan", "platform", "point", "section", "step", "team",
        "type", "version", "vitamin", "zone", *_NUMBERED,
    )
)  # fmt: skip
"""Words in front of a letter that is a label, and not the initial of a name."""


def count_sentences(text: str) -> int:
    """Count sentences by their final marks; text after the last mark is one more.

    A full stop of an abbreviation, of an initial or of a list's number ends no sentence, unless a word that begins
    sentences follows. A mark in front of a small letter ends one only in a text whose sentences begin with small ones.

    >>> count_sentences("Dr. J. Smith paid 3.50 dollars, i.e. too much. Why? He said: \\"Go!\\" and went.")
    3
    >>> count_sentences("we came. we saw. we left."), count_sentences("Plan B. It is No. 2.")
    (3, 2)
    """
    matches = list(_END.finditer(text))
    small: bool | None = None
    count = 0
    start = 0
    for match in matches:
        if match["alone"] is None:
            if _before_small(text, match):
                small = _begins_small(text, matches) if small is None else small
                if not small or _in_sentence(text, match):
                    continue
            elif not _ends(text, match):
                continue
        count += bool(_WORD.search(text, start, match.end()))
        start = match.end()
    return count + bool(_WORD.search(text, start))


def _begins_small(text: str, matches: list[re.Match[str]]) -> bool:
    """True if more sentences of a text begin with a small letter than with a capital."""
    first = _WORD.search(text)
    words = [first[0] if first else ""]
    for match in matches:
        if match["alone"] is None and not _in_sentence(text, match):
            words.append(_word_after(text, match)[0])
    return sum(map(_is_small, words)) > sum(word[:1].isupper() for word in words)


def _before_small(text: str, match: re.Match[str]) -> bool:
    """True if a word with a small letter follows a mark, not in quotation marks."""
    following = text[match.end() : match.end() + 60].lstrip()
    if not following[:1].islower():
        return False
    word = _WORD.match(following)
    return word is not None and _is_small(word[0])


def _ends(text: str, match: re.Match[str]) -> bool:
    """True if a mark in front of anything but a small letter ends a sentence."""
    if match["mark"] != "." or not text[match.end() : match.end() + 40].strip():
        return True
    return not _abbreviates(text, match, *_word_after(text, match))


def _in_sentence(text: str, match: re.Match[str]) -> bool:
    """True if a mark is an ellipsis, stands in quotation marks, or belongs to an abbreviation or number."""
    ellipsis = match["mark"].strip(".") == "" and len(match["mark"]) > 1
    if ellipsis or "\u2026" in match["mark"] or match["close"]:
        return True
    word, after = _word_after(text, match)
    return match["mark"] == "." and _abbreviates(text, match, word, after)


def _abbreviates(text: str, match: re.Match[str], word: str, after: str) -> bool:
    """True if a full stop belongs to the word before it.

    Args:
        text: the whole text.
        match: the full stop.
        word: the word that follows.
        after: the character behind that word.
    """
    line = text[max(0, match.start() - 60) : match.start()].rpartition("\n")[2]
    before = line.split()[-1].lstrip(_OPENING) if line.split() else ""
    if before.isdigit():
        return line.strip() == before and "\n" not in text[match.end() : match.end() + 1]  # of a list
    short = before.lower()
    capital = word[:1].isupper()
    if short in _CONTINUE:
        return True
    if short in _TITLES:
        return before[:1].isupper() or not capital
    if short in _NUMBERED:
        return word[:1].isdigit() if short == "no" else _LISTED.match(word) is not None
    if short in _MONTHS or short in _CLOSING:
        return not capital
    if short in _TIMES:
        return not capital or word.lower() in _TIME_GOES_ON
    initial = len(before) == 1 and before.isupper() and before != "I"
    labelled = [earlier.lower().strip(f".{_OPENING}") for earlier in line.split()[-2:-1]]
    if initial and capital and not _LABELLED.isdisjoint(labelled):
        return False
    if initial or short in _NAMES or _DOTTED.fullmatch(before):
        return not (capital and after != "." and word.lower() in _STARTERS)
    return False


def _word_after(text: str, match: re.Match[str]) -> tuple[str, str]:
    """Return the word after a mark, without opening quotation marks, and the character behind it."""
    following = text[match.end() : match.end() + 60].lstrip().lstrip(_OPENING)
    word = _WORD.match(following)
    return (word[0], following[word.end() : word.end() + 1]) if word else ("", "")


def _is_small(word: str) -> bool:
    """True if a word begins with a small letter, and is no name such as eBay."""
    return word[:1].islower() and not any(c.isupper() for c in word)
