"""Stop strings: check the end of a text for one that the newest token completes.

Decoding the whole text of every row at every token grows with the square of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

__all__ = ["Newest", "texts_ended"]

Newest = Callable[[Sequence[int], int | None], list[list[int]]]
"""Called with row numbers and a count: returns the last ``count`` tokens of each row, all if fewer or if None."""

EDGE = 16
"""Characters at the edge of a decoded piece that may differ from the whole text.

Causes: bytes of a character that was cut in two, a space that a tokenizer takes from the first word or puts before the
last one, cleaned-up spaces.
"""

BROKEN = "\N{REPLACEMENT CHARACTER}"
"""Decoding of invalid bytes: some tokenizers (Llama 2's) replace a whole run of bytes if one is missing."""

_SIZES: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, int]] = WeakKeyDictionary()


def texts_ended(
    tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], last: Sequence[int], newest: Newest
) -> list[bool]:
    """Return True for each row whose text contains a stop string; without its newest token it did not.

    A stop string that a row has just completed lies within the characters of the newest token and as many before as
    the longest stop string has. Only that part is decoded, with more tokens if some decode to nothing; a match is
    confirmed in the whole text.

    Args:
        tokenizer: decodes, without special tokens.
        stops: at least one text.
        last: [rows] the newest tokens.
        newest: returns the tokens of rows.
    """
    longest = max(map(len, stops))
    ended = [False] * len(last)
    rows, count = list(range(len(last))), longest + EDGE + 4
    while rows:
        wider: list[int] = []
        pieces = newest(rows, count)
        for row, piece, text in zip(rows, pieces, _decode(tokenizer, pieces), strict=True):
            if any(stop in text for stop in stops):
                ended[row] = True
            elif len(piece) == count and len(text.lstrip(BROKEN)) < longest + EDGE + _size(tokenizer, last[row]):
                wider.append(row)
        rows, count = wider, 4 * count
    found = [row for row, hit in enumerate(ended) if hit]
    for row, text in zip(found, _decode(tokenizer, newest(found, None)) if found else [], strict=True):
        ended[row] = any(stop in text for stop in stops)
    return ended


def _decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]]) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def _size(tokenizer: PreTrainedTokenizerBase, token: int) -> int:
    """Return the number of characters of a token."""
    sizes = _SIZES.setdefault(tokenizer, {})
    if token not in sizes:
        sizes[token] = len(_decode(tokenizer, [[token]])[0])
    return sizes[token]
