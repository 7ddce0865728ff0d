r"""Formulas of logic and of sets, compared by truth table: ``p \to q`` is ``\neg p \lor q``.

``A \cap B^c`` is ``A \setminus B``: a set is read as the proposition that an element belongs to it. Formulas have at
most six letters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

_MOST_LETTERS = 6
_LONGEST = 200
_SPELLINGS = (
    (re.compile(r"\\(?:text|mathrm)\s*\{\s*(and|or|not|if and only if|iff|implies|xor)\s*\}"), r" \1 "),
    (re.compile(r"\\(?:lnot|neg|sim)(?![a-zA-Z])|\bnot\b"), "\u00ac"),
    (re.compile(r"\\(?:land|wedge|cap)(?![a-zA-Z])|\band\b|&&"), "\u2227"),
    (re.compile(r"\\(?:lor|vee|cup)(?![a-zA-Z])|\bor\b|\|\|"), "\u2228"),
    (re.compile(r"\\(?:leftrightarrow|Leftrightarrow|iff)(?![a-zA-Z])|\bif and only if\b|\biff\b"), "\u2194"),
    (re.compile(r"\\(?:to|rightarrow|Rightarrow|implies|supset)(?![a-zA-Z])|\bimplies\b"), "\u2192"),
    (re.compile(r"\\(?:oplus|veebar|triangle|bigtriangleup|Delta)(?![a-zA-Z])|\bxor\b"), "\u2295"),
    (re.compile(r"\\(?:setminus|backslash)(?![a-zA-Z])"), "\u2216"),
    (re.compile(r"\\(?:overline|bar)\s*\{([^{}]*)\}"), "\u00ac(\\1)"),
    (re.compile(r"\^\s*\{?\s*(?:c|C|\\complement|\\mathsf\{c\}|\\prime)\s*\}?|(?<=[A-Z)])'"), "\u1d9c"),
    (re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\(?:left|right)(?![a-zA-Z])|[\s$~]"), ""),
)  # fmt: skip
_TOKEN = re.compile("[A-Za-z\u00ac\u2227\u2228\u2194\u2192\u2295\u2216\u1d9c()]")
_OPERATOR = re.compile("[\u00ac\u2227\u2228\u2194\u2192\u2295\u2216\u1d9c]")

Table = Callable[[dict[str, bool]], bool]
_JOINS: tuple[tuple[str, Callable[[bool, bool], bool]], ...] = (
    ("\u2194", lambda a, b: a == b),
    ("\u2192", lambda a, b: not a or b),
    ("\u2295", lambda a, b: a != b),
    ("\u2228", lambda a, b: a or b),
    ("\u2216", lambda a, b: a and not b),
    ("\u2227", lambda a, b: a and b),
)
"""Operators between two formulas, from the loosest to the tightest."""


def equal_formulas(gold: str, given: str) -> bool | None:
    r"""Compare two formulas; None unless both are formulas and one has an operator of logic or of sets.

    >>> equal_formulas(r"p \to q", r"\neg p \lor q"), equal_formulas(r"A \setminus B", r"B \cap A^c")
    (True, False)
    >>> equal_formulas("x + y", "y + x"), equal_formulas("p", "q")
    (None, None)
    """
    ours = formula(gold)
    candidate = formula(given)
    if ours is None or candidate is None:
        return None
    letters = sorted(ours[1] | candidate[1])
    if len(letters) > _MOST_LETTERS:
        return None
    rows = (dict(zip(letters, row, strict=True)) for row in itertools.product((False, True), repeat=len(letters)))
    return all(ours[0](row) == candidate[0](row) for row in rows)


def formula(text: str) -> tuple[Table, frozenset[str]] | None:
    """Parse a formula with at least one operator; return its truth table and its letters, or None."""
    if len(text) > _LONGEST:
        return None
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not _OPERATOR.search(text):
        return None
    letters = frozenset(token for token in tokens if token.isalpha())
    parser = _Parser(tokens)
    try:
        table = parser.joined(0)
    except (IndexError, ValueError):
        return None  # not a formula
    return (table, letters) if parser.place == len(tokens) and letters else None


class _Parser:
    """Recursive-descent parser; an implication associates to the right, other operators to the left."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.place = 0

    def joined(self, level: int) -> Table:
        if level == len(_JOINS):
            return self.single()
        mark, join = _JOINS[level]
        left = self.joined(level + 1)
        while self.next() == mark:
            self.place += 1
            right = self.joined(level if mark == "\u2192" else level + 1)
            left = _join(left, right, join)
        return left

    def single(self) -> Table:
        token = self.tokens[self.place]
        self.place += 1
        if token == "\u00ac":
            inner = self.single()
            return lambda row: not inner(row)
        if token == "(":
            result = self.joined(0)
            if self.next() != ")":
                raise ValueError("missing )")
            self.place += 1
        elif token.isalpha():
            result = _letter(token)
        else:
            raise ValueError(f"unexpected {token!r}")
        while self.next() == "\u1d9c":
            self.place += 1
            result = _negated(result)
        return result

    def next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""


def _join(left: Table, right: Table, join: Callable[[bool, bool], bool]) -> Table:
    return lambda row: join(left(row), right(row))


def _letter(name: str) -> Table:
    return lambda row: row[name]


def _negated(table: Table) -> Table:
    return lambda row: not table(row)
