"""Parsing of knights-and-knaves answers: sentences, lists, groups, headings, objects, letters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gspo_lightning.rewards.logic.final import without_emphasis
from gspo_lightning.rewards.logic.lenient import parse_object

__all__ = ["read_kinds"]

Found = dict[str, bool]
_BULLET = r"(?:\(\d\)\s*|\d[.)]\s*|[-*\u2022]\s+)?"
_ITEM = (
    _BULLET + r"\(?({names})\)?\s*"
    r"(?:is\s+(?:an?\s|the\s)?|(?:[:=|\u2013\u2014\u2192]|->?)\s*(?:an?\s|the\s)?|\(|(?<=[\s)]))"
    r"\s*(knight|knave)(?![a-z])\)?"
)
_GROUP = (
    _BULLET + r"(({names})(?:\s*,\s*({names}))*,?\s*(?:,|\band\b|&)\s*({names}))"
    r"\s+are\s+(?:both\s+|all\s+)?(knight|knave)s(?![a-z])"
)
_HEADING = (
    _BULLET + r"(knight|knave)s?\s*[:=]\s*(({names})(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*&\s*)({names}))*)(?!\w)"
)
_BETWEEN = re.compile(r"(?:[\s,;.|&()\[\]]|\band\b|\bwhile\b)*", re.IGNORECASE)
_TABLE_HEAD = re.compile(r"\|[^|\n]*\|[^|\n]*\|\s*\n\|[-: |]+\|\s*\n")


def read_kinds(text: str, names: Sequence[str]) -> Found | str:
    """Return each name and whether it is a knight, or the problem as text.

    >>> read_kinds("A and C are **knights**, B is the knave.", ["A", "B", "C"])
    {'A': True, 'C': True, 'B': False}
    >>> read_kinds("A is a knight or B is a knave", ["A", "B"])
    'more than names with knight or knave'
    """
    text = without_emphasis(text).strip()
    if (head := _TABLE_HEAD.match(text)) is not None:
        text = text[head.end() :]
    if text.startswith("{"):
        return _object(text, names)
    if list(text.upper()) == list(names):
        return {c.upper(): c.isupper() for c in text}
    return _statements(text, names)


def _object(text: str, names: Sequence[str]) -> Found | str:
    try:
        said, end = parse_object(text)
    except ValueError as error:
        return str(error)
    kinds = {key.strip().lower(): value for key, value in said.items()}
    if text[end:].strip() or set(kinds) != {name.lower() for name in names}:
        return "not one entry for each name"
    found = {name: _kind(kinds[name.lower()]) for name in names}
    known = {name: kind for name, kind in found.items() if kind is not None}
    return known if len(known) == len(names) else "an entry is neither knight nor knave"


def _kind(value: object) -> bool | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    return {"knight": True, "knave": False}.get(word.removeprefix("a "))


def _statements(text: str, names: Sequence[str]) -> Found | str:
    """Parse statements in any order, with nothing else between or after them."""
    known = {name.lower(): name for name in names}
    one = "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
    each = re.compile(rf"(?<!\w)(?:{one})(?!\w)", re.IGNORECASE)
    item, group, heading = (
        re.compile(form.replace("{names}", one), re.IGNORECASE) for form in (_ITEM, _GROUP, _HEADING)
    )
    found: Found = {}
    position = 0
    while True:
        between = _BETWEEN.match(text, position)
        assert between is not None  # the pattern matches the empty text
        position = between.end()
        if (match := item.match(text, position)) is not None:
            said, kind = [match[1]], match[2]
        elif (match := group.match(text, position)) is not None:
            said, kind = each.findall(match[1]), match[5]
        elif (match := heading.match(text, position)) is not None:
            said, kind = each.findall(match[2]), match[1]
        else:
            break
        for name in (known[word.lower()] for word in said):
            if name in found:
                return f"{name} is named twice"
            found[name] = kind.lower() == "knight"
        position = match.end()
    if position < len(text):
        return "more than names with knight or knave" if found else "not like: A is a knight, B is a knave"
    missing = [n for n in names if n not in found]
    return f"{missing[0]} is not named" if missing else found
