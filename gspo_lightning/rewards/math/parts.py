r"""Answers in labelled parts: ``(a) 4, (b) 3``, ``I: 5, II: 4``. Each part is compared with the part of its label."""

from __future__ import annotations

import re
import string
from collections.abc import Callable

_FONT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf|textit|textnormal)\s*\{([^{}]*)\}")
_LABEL = re.compile(
    r"(?:^|(?<=[\s,;.:&])|(?<=\\\\)|(?<=\\[,;:! ])|(?<=quad))(?:\s|\\q?quad(?![a-zA-Z])|~)*(?:(?:part|and)\s+)?"
    r"(?:\(\s*([A-Za-z]|[ivxIVX]{1,4}|\d)\s*\)|([A-Za-z]|[ivxIVX]{1,4}|\d)\s*[:)]|([A-Z]|[IVX]{1,4})\.(?=\s))",
    re.IGNORECASE,
)
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_ALPHABETS = (tuple(string.ascii_lowercase), _ROMAN, tuple(string.digits[1:]))
_EDGE = re.compile(
    r"^(?:\s|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\\\|[,;.~&])+|(?:\s|(?<!\\)\\[,;:! ]|\\q?quad|\\\\|[,;.~&]|\band\b)+$"
)


def parts(text: str) -> list[tuple[str, str]] | None:
    r"""Return the labels, in lower case, and the texts of an answer in parts; None if it has none.

    Labels are ``a``, ``b``, ``c`` and so on, in any order; a single part must have its label in parentheses.

    >>> parts(r"(a)\ 4,\ (b)\ 3"), parts("I: 5, II: 4"), parts("E. coli"), parts("(x) + 2")
    ([('a', '4'), ('b', '3')], [('i', '5'), ('ii', '4')], None, None)
    """
    plain = _FONT.sub(lambda m: f" {m[1]} " if _LABEL.search(m[1]) else m[0], text).strip()
    labels = list(_LABEL.finditer(plain))
    if not labels or labels[0].start() != 0:
        return None
    names = [next(group for group in match.groups() if group).lower() for match in labels]
    if len(labels) == 1:
        rest = plain[labels[0].end() :]
        bracketed = labels[0][1] is not None and not names[0].isdigit()
        if not bracketed or (not rest[:1].isspace() and not re.match(r"\\[,;:! ]|\\q?quad", rest)):
            return None
        return [(names[0], _EDGE.sub("", rest))] if not re.match(r"\s*[-+*/^=<>]", rest) else None
    if len(set(names)) < len(names) or not any(set(names) == set(alphabet[: len(names)]) for alphabet in _ALPHABETS):
        return None
    ends = [match.start() for match in labels[1:]] + [len(plain)]
    texts = [_EDGE.sub("", plain[match.end() : end]) for match, end in zip(labels, ends, strict=True)]
    return list(zip(names, texts, strict=True)) if all(texts) else None


def by_parts(gold: str, given: str, same: Callable[[str, str], bool], split: Callable[[str], list[str]]) -> bool | None:
    """Compare an answer with a record in parts: by label, or in order if it has no labels; None if there are no parts.

    Args:
        gold: the record's answer.
        given: the answer.
        same: compares a part of the record with a part of the answer.
        split: splits a list into its elements.
    """
    expected = parts(gold)
    result = parts(given)
    if expected is None:
        values = split(gold) if result and len(result) > 1 else []
        if not result or len(values) != len(result):
            return None
        return all(same(value, text) for value, (_, text) in zip(values, result, strict=True))
    if result is not None:
        candidate = dict(result)
        return len(result) == len(expected) and all(
            label in candidate and same(text, candidate[label]) for label, text in expected
        )
    if len(expected) == 1:
        return same(expected[0][1], given)
    values = split(given)
    return len(values) == len(expected) and all(
        same(text, value) for (_, text), value in zip(expected, values, strict=True)
    )
