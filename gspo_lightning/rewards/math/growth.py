r"""Orders of growth: ``O(n \log n)`` is ``\mathcal{O}(n \log_2 n)``, but neither ``\Theta(n \log n)`` nor ``O(n)``."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.identity import number_at

_ORDER = re.compile(
    r"\s*(?:[A-Za-z]\s*\(\s*[a-z]\s*\)\s*(?:=|\\in(?![a-z]))\s*)?"
    r"(?:\\(?:mathcal|mathrm|text|operatorname|mathop)\s*\{\s*)?(?P<symbol>[Oo\u0398\u03a9\u03c9]|\\(?:Theta|Omega"
    r"|omega))\s*\}?\s*(?:\\left)?\((?P<body>.*?)(?:\\right)?\)\s*",
    re.DOTALL,
)
_SYMBOLS = {"\u0398": "\\Theta", "\u03a9": "\\Omega", "\u03c9": "\\omega"}
_LOGARITHM = re.compile(r"\\?(?<![A-Za-z])(?:log|ln|lg)(?![A-Za-z])(?:\s*_\s*(?:\{\s*\w+\s*\}|\w))?")
_POINTS = (2.3717, 5.7193, 11.9171, 17.3331)
_LONGEST = 100


def equal_growth(gold: str, given: str) -> bool | None:
    r"""Compare two orders of growth; None if one is none. The base of a logarithm and constant factors do not count.

    >>> equal_growth(r"O(n\log n)", r"\mathcal{O}(n \log_2 n)"), equal_growth("O(n)", r"\Theta(n)")
    (True, False)
    """
    ours = _ORDER.fullmatch(gold)
    candidate = _ORDER.fullmatch(given) if ours else None
    if ours is None or candidate is None or max(len(gold), len(given)) > _LONGEST:
        return None
    if _SYMBOLS.get(ours["symbol"], ours["symbol"]) != _SYMBOLS.get(candidate["symbol"], candidate["symbol"]):
        return False
    return _proportional(_natural(ours["body"]), _natural(candidate["body"]))


def is_growth(text: str) -> bool:
    """True if a text is an order of growth."""
    return len(text) <= _LONGEST and _ORDER.fullmatch(text) is not None


def _natural(text: str) -> str:
    """Give all logarithms one base but those in exponents, where the base counts: ``n^{\\log_2 3}``."""
    parts = []
    start = 0
    for match in re.finditer(r"\^\s*\{", text):
        if match.start() < start:
            continue  # inside of another exponent
        end = _closing(text, match.end())
        parts += [_LOGARITHM.sub(r"\\ln ", text[start : match.start()]), text[match.start() : end]]
        start = end
    return "".join([*parts, _LOGARITHM.sub(r"\\ln ", text[start:])])


def _closing(text: str, start: int) -> int:
    """Return the place behind the brace that closes the one before ``start``."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)


def _proportional(ours: str, candidate: str) -> bool:
    """True if the quotient of two functions is a constant."""
    if ours.split() == candidate.split():
        return True
    expressions = [
        [item for item in library.parse(text, boxed=True) if hasattr(item, "subs")] for text in (ours, candidate)
    ]
    if not all(expressions):
        return False
    above = expressions[0][0]
    below = expressions[1][0]
    if above.free_symbols != below.free_symbols:
        return False
    symbols = sorted(above.free_symbols, key=str)
    if not symbols:
        return library.equal([above], [below], None, strict=True)  # a group, O(2), or a value
    quotients = []
    for shift in _POINTS:
        values = {symbol: shift + 0.61 * place for place, symbol in enumerate(symbols)}
        first = number_at(above, values)
        second = number_at(below, values)
        if not first or not second:
            return False
        quotients.append(first / second)
    return all(abs(quotient - quotients[0]) <= 1e-9 * abs(quotients[0]) for quotient in quotients)
