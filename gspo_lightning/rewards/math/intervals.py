r"""Inequalities as intervals: ``2 \le x < 5`` is ``[2,5)``, ``x < 0 \text{ or } x > 1`` a union.

Only text is converted: the ends stay as written, and the library compares the intervals.
"""

from __future__ import annotations

import re

__all__ = ["as_interval", "is_interval", "is_relation"]

_SIGNS = (
    (re.compile(r"\\leq?(?![a-zA-Z])|<="), "\u2264"),
    (re.compile(r"\\geq?(?![a-zA-Z])|>="), "\u2265"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
)
_BUILDER = re.compile(
    r"\\?\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|R)\s*)?(?:\\mid|\||:|\\vert)(.*?)\\?\}", re.DOTALL
)
_OR = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*or\s*\}|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\bor\b")
_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in\s*(?=[\[(\\])")
_INTERVAL = re.compile(r"[\[(][^\[\]]*,[^\[\]]*[\])]")
_NAME = re.compile(r"[a-zA-Z]|\\(?:theta|alpha|beta|lambda|mu)")
_SPACES = re.compile(r"\s+|\\[,;:! ]")


def is_interval(text: str) -> bool:
    r"""True if a text looks like an interval or a union of them; ``(1,2)`` may be a point as well."""
    pieces = [p.strip() for p in _MEMBER.sub("", text).split("\\cup")]
    return all(_INTERVAL.fullmatch(piece) for piece in pieces)


def is_relation(text: str) -> bool:
    """True if a text has an inequality sign."""
    return any(pattern.search(text) for pattern, _ in _SIGNS) or "<" in text or ">" in text


def as_interval(text: str) -> str | None:
    r"""Convert an inequality in one variable to an interval; None if the text is not one.

    >>> as_interval(r"2 \le x < 5"), as_interval("x > 3"), as_interval(r"x<0 \text{ or } x>1"), as_interval("|x| < 1")
    ('[2,5)', '(3,\\infty)', '(-\\infty,0)\\cup(1,\\infty)', '(-1,1)')
    """
    text = text.replace("$", " ")
    if match := _BUILDER.fullmatch(text.strip()):
        text = match[2]
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    pieces = [_piece(_SPACES.sub("", piece)) for piece in _OR.split(text)]
    if len({name for _, name in pieces}) != 1 or any(interval is None for interval, _ in pieces):
        return None
    return "\\cup".join(interval for interval, _ in pieces if interval)


def _piece(text: str) -> tuple[str | None, str]:
    parts = re.split("([<>\u2264\u2265])", text)
    values, signs = parts[::2], parts[1::2]
    if not all(values) or any("," in value for value in values):
        return None, ""
    if len(signs) == 2 and _NAME.fullmatch(values[1]):
        left, name, right = values
        if all(s in "<\u2264" for s in signs):
            return _between(left, signs[0], signs[1], right), name
        if all(s in ">\u2265" for s in signs):
            return _between(right, signs[1], signs[0], left), name
    if len(signs) == 1:
        left, right, sign = *values, signs[0]
        if bars := re.fullmatch(r"(?:\||\\vert|\\lvert)([a-zA-Z])(?:\||\\vert|\\rvert)", left):
            return (
                (_between(f"-{right}", sign, sign, right), bars[1])
                if sign in "<\u2264" and right.isdigit()
                else (None, "")
            )
        if _NAME.fullmatch(right) and not _NAME.fullmatch(left):
            left, right, sign = right, left, {"<": ">", ">": "<", "\u2264": "\u2265", "\u2265": "\u2264"}[sign]
        if _NAME.fullmatch(left) and not _NAME.fullmatch(right):
            if sign in "<\u2264":
                return f"(-\\infty,{right}{')' if sign == '<' else ']'}", left
            return f"{'(' if sign == '>' else '['}{right},\\infty)", left
    return None, ""


def _between(low: str, first: str, second: str, high: str) -> str:
    opening = "[" if first in "\u2264\u2265" else "("
    closing = "]" if second in "\u2264\u2265" else ")"
    return f"{opening}{low},{high}{closing}"
