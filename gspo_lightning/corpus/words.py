r"""Convert a text to words without markup, case, signs and different ways to write numbers.

Leaks are searched in this form, where ``$\frac{3}{4}$ of 1{,}000`` and ``3/4 of 1,000`` are the same.
"""

from __future__ import annotations

import html
import re
import unicodedata

__all__ = ["words"]

_LAYOUT = re.compile(
    r"\\(?:[dtc]?frac|text(?:bf|it|rm|sf|tt)?|math(?:bf|it|rm|sf|tt|bb|cal|frak)?|left|right|[Bb]igg?[lr]?|[cl]?dots?|"
    r"times|q?quad|begin\{\w+\*?\}|end\{\w+\*?\}|displaystyle|operatorname|mbox|boxed|limits|label\{[^{}]*\}|"
    r"underline|overline|hspace\{[^{}]*\}|vspace\{[^{}]*\}|emph|item|par|noindent)(?![A-Za-z])"
)
_TAG = re.compile(
    r"</?(?:p|br|b|i|u|em|strong|sup|sub|span|div|ul|ol|li|code|pre|h[1-6]|table|tbody|thead|tr|t[dh]|a|img|math|m[nio]|"
    r"mrow|mfrac|msup|msub)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")
_SIGNS = str.maketrans(
    {
        "\u221a": " sqrt ", "\u03c0": " pi ", "\u221e": " infty ", "\u2264": " le ", "\u2265": " ge ",
        "\u2260": " ne ", "\u2208": " in ", "\u00d7": " ", "\u00b7": " ", "\u00b0": " circ ", "\u03b1": " alpha ",
        "\u03b2": " beta ", "\u03b3": " gamma ", "\u03b8": " theta ", "\u03bb": " lambda ",
    }
)  # fmt: skip
_SAME = {"leq": "le", "geq": "ge", "neq": "ne", "degree": "circ", "degrees": "circ"}
_WORD = re.compile(r"[^\W\d_]+|\d+")
_UNITS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_NUMBERS = {**_UNITS, **_TENS}


def words(text: str) -> list[str]:
    r"""Return runs of letters and runs of digits, in lower case.

    >>> words(r"What is $\frac{3}{4}$ of 1{,}000?") == words("what is <b>3/4</b> of 1,000")
    True
    >>> words("Forty-eight of her 5 friends, and x² <= 7")
    ['48', 'of', 'her', '5', 'friends', 'and', 'x', '2', '7']
    """
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "\\" in text:
        text = _THOUSANDS.sub("", text)
        text = _LAYOUT.sub(" ", text)
    elif "," in text:
        text = _THOUSANDS.sub("", text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_SIGNS))
    return _in_digits(_WORD.findall(text.casefold()))


def _in_digits(found: list[str]) -> list[str]:
    """Write numbers below a hundred in digits, and give each sign one name."""
    if _NUMBERS.keys().isdisjoint(found) and _SAME.keys().isdisjoint(found):
        return found
    kept: list[str] = []
    tens = 0  # pending: a unit may follow
    for word in found:
        unit = _UNITS.get(word, 0)
        if tens and 0 < unit < 10:
            kept.append(str(tens + unit))
            tens = 0
            continue
        if tens:
            kept.append(str(tens))
        tens = _TENS.get(word, 0)
        if not tens:
            kept.append(str(_UNITS[word]) if word in _UNITS else _SAME.get(word, word))
    return [*kept, str(tens)] if tens else kept
