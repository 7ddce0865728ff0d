r"""Spellings for the library of what it misreads: degrees in functions, decimals, remainders, phasors, choices."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.numerals import exact
from gspo_lightning.rewards.math.units import TRIGONOMETRIC

_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))")
_CHOICES = re.compile(r"(?<![A-Za-z\\}_^])C\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_PHASOR = re.compile(
    r"((?:\d|\.|\\sqrt|[{}])+)\s*\\angle\s*\(?(-?\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))\)?"
)
r"""Modulus and angle in degrees: ``2\angle 60^\circ``."""
_PARTS = re.compile(r"\\[td]?binom\s*\{\s*(\d{1,3})\s*\}\s*\{\s*(\d{1,3}(?:\s*,\s*\d{1,3})+)\s*\}")
_REMAINDER = re.compile(r"(\d{1,18})\s*\\b?mod\s*([1-9]\d{0,17})")


def for_library(text: str) -> str:
    r"""Rewrite a text so that Math-Verify reads it as it is meant.

    >>> for_library(r"\binom{5}{2,3}"), for_library(r"2\angle 60^\circ"), for_library(r"17 \bmod 5")
    ('\\frac{5!}{2!3!}', '(2)e^{i\\frac{60\\pi}{180}}', '2')
    """
    text = _PHASOR.sub(r"(\1)e^{i\\frac{\2\\pi}{180}}", text)
    if TRIGONOMETRIC.search(text):
        text = _DEGREES.sub(r"\\frac{\1\\pi}{180}", text)
    text = _CHOICES.sub(r"\\binom{\1}{\2}", text)
    text = _PARTS.sub(_multinomial, text)
    text = _REMAINDER.sub(lambda m: str(int(m[1]) % int(m[2])), text)
    return text if literal(text) is not None else exact(text)


def _multinomial(match: re.Match[str]) -> str:
    r"""Write ``\binom{5}{2,3}`` with factorials, if the lower numbers add up to the upper one."""
    sizes = [int(size) for size in match[2].split(",")]
    if sum(sizes) != int(match[1]):
        return match[0]
    return f"\\frac{{{match[1]}!}}{{{''.join(f'{size}!' for size in sizes)}}}"
