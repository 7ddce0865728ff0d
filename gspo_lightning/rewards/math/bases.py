r"""Numbers in a base: ``1010_2``, ``(1010)_{\text{two}}``, ``1010 \text{ (base 2)}``.

The base belongs to such an answer, since the question asks for it: digits and base must both agree, and a number
without a base is another answer.
"""

from __future__ import annotations

import re

_NAMES = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_BASE = rf"(\d{{1,2}}|{'|'.join(_NAMES)})"
_WRAPPED = r"(?:\\(?:text|mathrm)\s*\{\s*(?:base\s*)?" + _BASE + r"\s*\}|" + _BASE + ")"
_DIGITS = r"(?:\\(?:text|mathrm)\s*\{\s*)?\(?\s*([0-9][0-9A-Za-z]*|[0-9A-Fa-f]+)\s*\)?\s*\}?"
_INDEX = re.compile(rf"{_DIGITS}\s*_\s*\{{?\s*\(?\s*{_WRAPPED}\s*\)?\s*\}}?", re.IGNORECASE)
_PREFIXED = re.compile(
    r"(?:\\(?:text|mathrm|texttt)\s*\{\s*)?0(?:(?=x[0-9a-f]+\W*$)(x)|(?=b[01]+\W*$)(b)"
    r"|(?=o[0-7]+\W*$)(o))([0-9a-f]+)\s*\}?",
    re.IGNORECASE,
)
"""Number as programming languages write it: ``0xFF``, ``0b101``."""
_SPOKEN = re.compile(
    rf"{_DIGITS}\s*\\?\s*(?:\\(?:text|mathrm)\s*\{{)?\s*\(?\s*(?:in\s+)?base[\s-]*\}}?\s*{_BASE}\s*\)?\s*\}}?",
    re.IGNORECASE,
)


def based(text: str) -> tuple[str, int] | None:
    r"""Return the digits and base of a number that names its base, or None.

    >>> based("1010_2"), based(r"4210_{\text{seven}}"), based("1010"), based("x_2")
    (('1010', 2), ('4210', 7), None, None)
    """
    if prefixed := _PREFIXED.fullmatch(text.strip()):
        mark = next(group for group in prefixed.groups()[:3] if group).lower()
        return prefixed[4].upper(), {"x": 16, "b": 2, "o": 8}[mark]
    text = re.sub(r"(?<=\d),(?=\d{3})|\\[,! ]", "", text.strip())
    match = _INDEX.fullmatch(text) or _SPOKEN.fullmatch(text)
    if match is None:
        return None
    digits = match[1].upper()
    name = next(group for group in match.groups()[1:] if group).lower()
    base = int(name) if name.isdigit() else _NAMES.index(name) + 2
    if not 2 <= base <= 36 or not (digits[0].isdigit() or base > 10):
        return None
    try:
        int(digits, base)
    except ValueError:
        return None
    return digits, base
