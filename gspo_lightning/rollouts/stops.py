"""Stop strings: whether a text has come to hold one with its newest token, from the end of the text alone.

Decoding the whole text of every row at every token grows with the square of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

__all__ = ["Newest", "texts_ended"]

Newest = Callable[[Sequence[int], int | None], list[list[int]]]
"""Called with numbers of rows and a count: their last so many tokens, all where there are fewer or None is given."""

EDGE = 16
"""Characters by which a piece of a text may read otherwise than in the whole: bytes of a character that was cut in two,
a space that a tokenizer takes from the first word or puts before the last one, spaces that are cleaned up."""

BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What bytes read that are no text: some tokenizers (Llama 2's) read all of a run of bytes so if one is missing."""

_SIZES: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, int]] = WeakKeyDictionary()


def texts_ended(
    tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], last: Sequence[int], newest: Newest
) -> list[bool]:
    """Whether the text of each row contains a stop string; without its newest token it did not.

    A stop string that a row has just completed lies within the characters of the newest token and as many before as
    the longest stop string has. So much of the text is decoded, more tokens where some write nothing; what is found
    there is looked for in the whole text once more.

    Args:
        tokenizer: decodes; special tokens write nothing.
        stops: at least one text.
        last: [rows] the newest tokens.
        newest: gives the tokens of rows.
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
    """Characters of a token."""
    sizes = _SIZES.setdefault(tokenizer, {})
    if token not in sizes:
        sizes[token] = len(_decode(tokenizer, [[token]])[0])
    return sizes[token]
