"""Text of a prompt, its normalised form for comparing prompts, and its words."""

from __future__ import annotations

import html
import os
import re
import unicodedata
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_ENCODING = "utf-8"
_SURROGATES = "surrogatepass"  # JSON may hold half a surrogate pair
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


def prompt_text(value: Any) -> str | None:
    r"""Return the text of a prompt: a text as it is, chat messages without system messages; None for anything else.

    >>> prompt_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}])
    '1+1?'
    """
    if isinstance(value, str):
        return value
    if (
        not isinstance(value, list)
        or not all(isinstance(message, dict) and "role" in message for message in value)
        or not value
    ):
        return None
    return "\n".join(_content(message.get("content")) for message in value if message["role"] != "system")


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def normalised(text: str) -> str:
    """Remove differences of Unicode's compatibility forms (NFKC), case and white space.

    >>> normalised("  What is\\u00a0 6 x 7?\\n")
    'what is 6 x 7?'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


class TextStore:
    """Texts kept in a file. Memory: 8 bytes a text."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b")  # noqa: SIM115 (open as long as the store)
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, text: str) -> None:
        """Append a text."""
        self._ends.append(self._ends[-1] + self._file.write(text.encode(_ENCODING, _SURROGATES)))

    def at(self, place: int) -> str:
        """Return the text at a place."""
        begin = self._ends[place]
        end = self._ends[place + 1]
        return self._bytes(begin, end).decode(_ENCODING, _SURROGATES)

    def length(self, place: int) -> int:
        """Return the length in bytes of the text at a place."""
        return self._ends[place + 1] - self._ends[place]

    def blocks(self, places: np.ndarray, size: int = 1 << 16) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Yield (places, texts) in order, about ``size`` bytes at a time."""
        ends = np.frombuffer(self._ends, dtype=np.int64)
        cumulative = np.cumsum(ends[places + 1] - ends[places])
        start = 0
        while start < len(places):
            before = int(cumulative[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(cumulative, before + size, side="right")))
            some = places[start:stop]
            first = int(ends[some[0]])
            last = int(ends[some[-1] + 1])
            if last - first <= 4 * size:
                block = self._bytes(first, last)
                texts = [block[int(ends[i]) - first : int(ends[i + 1]) - first] for i in some]
                yield some, [text.decode(_ENCODING, _SURROGATES) for text in texts]
            else:
                yield some, [self.at(int(i)) for i in some]
            start = stop

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _bytes(self, begin: int, end: int) -> bytes:
        self._file.flush()
        return os.pread(self._file.fileno(), end - begin, begin)


def words(text: str) -> list[str]:
    r"""Return runs of letters and runs of digits, without markup, case, signs and different ways to write numbers.

    Leaks are searched in this form, where ``$\frac{3}{4}$ of 1{,}000`` and ``3/4 of 1,000`` are the same.

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


def _in_digits(words: list[str]) -> list[str]:
    """Write numbers below a hundred in digits, and give each sign one name."""
    if _NUMBERS.keys().isdisjoint(words) and _SAME.keys().isdisjoint(words):
        return words
    written: list[str] = []
    tens = 0  # pending: a unit may follow
    for word in words:
        unit = _UNITS.get(word, 0)
        if tens and 0 < unit < 10:
            written.append(str(tens + unit))
            tens = 0
            continue
        if tens:
            written.append(str(tens))
        tens = _TENS.get(word, 0)
        if not tens:
            written.append(str(_UNITS[word]) if word in _UNITS else _SAME.get(word, word))
    return [*written, str(tens)] if tens else written
