r"""Sums and integrals with a bound letter of any name: ``\sum_{k=1}^\infty x^k`` is ``\sum_{n=0}^\infty x^{n+1}``.

Computer algebra takes seconds for such a pair, or renames nothing. Two sums are compared term by term, the first term
of one with the first of the other; an integral gets the letter of the other one.
"""

from __future__ import annotations

import re
from typing import Any

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.identity import number_at

_SUM = re.compile(
    r"\s*(?:[A-Za-z]\s*\(\s*[a-z]\s*\)\s*=\s*)?\\sum\s*(?:\\limits)?\s*_\s*\{\s*(?P<letter>[a-z])\s*=\s*(?P<low>\d{1,3})\s*\}\s*"
    r"\^\s*(?:\{\s*(?P<high>\\infty|[^{}]{1,20})\s*\}|(?P<single>\\infty|\w))(?P<term>.+)",
    re.DOTALL,
)
_INTEGRAL = re.compile(
    r"\s*\\int(?![a-z]).*?(?P<end>(?:\\[,;:! ]|\s|\\mathrm\s*\{\s*d\s*\}|d)+(?P<letter>[a-z])\s*)", re.DOTALL
)
_TERMS = 7
_POINTS = ((0.3719, 0.8213, 0.5347), (0.7123, 0.2917, 0.9431))
_LONGEST = 200


def equal_bound(gold: str, given: str) -> bool | None:
    r"""Compare two sums or two integrals; None if the texts are no pair of these, or are not understood.

    >>> equal_bound(r"\int_0^1 f(x)\,dx", r"\int_0^1 f(t)\,dt")
    True
    """
    if max(len(gold), len(given)) > _LONGEST:
        return None
    ours = _SUM.fullmatch(gold)
    candidate = _SUM.fullmatch(given) if ours else None
    if ours is not None and candidate is not None:
        return _same_sums(ours, candidate)
    return _same_integrals(gold, given)


def _same_integrals(gold: str, given: str) -> bool | None:
    """Return True if two integrals differ in nothing but their letter, None if they may be equal all the same."""
    ours = _INTEGRAL.fullmatch(gold)
    candidate = _INTEGRAL.fullmatch(given) if ours else None
    if ours is None or candidate is None or ours["letter"] == candidate["letter"]:
        return None
    if re.search(rf"(?<![A-Za-z\\]){ours['letter']}(?![A-Za-z])", given):
        return False  # the record's letter is a constant there
    renamed = re.sub(rf"(?<![A-Za-z\\])(d?){candidate['letter']}(?![A-Za-z])", rf"\g<1>{ours['letter']}", given)
    return True if _without_blanks(renamed) == _without_blanks(gold) else None


def _without_blanks(text: str) -> str:
    return re.sub(r"\s|\\[,;:! ]|\\mathrm\{(d)\}", lambda m: m[1] or "", text)


def _same_sums(ours: re.Match[str], candidate: re.Match[str]) -> bool | None:
    """Compare the first terms, without leading ones that vanish, and the numbers of terms."""
    first = _terms(ours)
    second = _terms(candidate)
    if first is None or second is None or first[1] != second[1]:
        return None
    ends = [_last(match) for match in (ours, candidate)]
    if None in ends:
        return None
    starts = []
    columns = []
    for match, (rows, _) in ((ours, first), (candidate, second)):
        skipped = next((i for i, row in enumerate(rows) if any(abs(x) > 1e-15 for x in row)), None)
        if skipped is None:
            return None
        starts.append(int(match["low"]) + skipped)
        columns.append(rows[skipped : skipped + _TERMS - 2])
    count = min(map(len, columns))
    alike = all(
        abs(a - b) <= 1e-9 * max(abs(a), abs(b))
        for left, right in zip(columns[0][:count], columns[1][:count], strict=True)
        for a, b in zip(left, right, strict=True)
    )
    return alike and _as_far(ends[0], ends[1], starts[1] - starts[0])


def _as_far(end: Any, other: Any, shift: int) -> bool:
    """True if two sums end after as many terms, the other's letter being so much greater."""
    if "\\infty" in (end, other):
        return bool(end == other)
    difference = other - end
    return bool(difference == shift)


def _last(match: re.Match[str]) -> Any:
    """Return the upper limit, ``\\infty`` or an expression; None if it is not understood."""
    high = (match["high"] or match["single"]).strip()
    if high == "\\infty":
        return high
    return next((item for item in library.parse(high, boxed=True) if hasattr(item, "free_symbols")), None)


def _terms(match: re.Match[str]) -> tuple[list[list[complex]], frozenset[str]] | None:
    """Return the values of the first terms at points, and the names of the other letters."""
    reading = [item for item in library.parse(match["term"], boxed=True) if hasattr(item, "free_symbols")]
    if not reading or "\\sum" in match["term"] or any(len(split(match["term"][1:], mark)) > 1 for mark in "+-,"):
        return None
    letters = sorted((symbol for symbol in reading[0].free_symbols if str(symbol) != match["letter"]), key=str)
    bound = [symbol for symbol in reading[0].free_symbols if str(symbol) == match["letter"]]
    if not bound or len(letters) > len(_POINTS[0]):
        return None
    rows = []
    for k in range(int(match["low"]), int(match["low"]) + _TERMS):
        at_k = reading[0].subs(bound[0], k)
        row = [number_at(at_k, dict(zip(letters, point, strict=False))) for point in _POINTS]
        values = [value for value in row if value is not None]
        if len(values) < len(row):
            return None
        rows.append(values)
    return rows, frozenset(map(str, letters))
