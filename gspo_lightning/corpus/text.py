"""Text of a prompt, and the normalised form for comparing prompts."""

from __future__ import annotations

import os
import unicodedata
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["TextStore", "normalised", "prompt_text"]

_ENCODING, _SURROGATES = "utf-8", "surrogatepass"  # JSON may hold half a surrogate pair


def prompt_text(value: Any) -> str | None:
    r"""Return the text of a prompt: a text as it is, chat messages without system messages; None for anything else.

    >>> prompt_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}])
    '1+1?'
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(one, dict) and "role" in one for one in value) or not value:
        return None
    return "\n".join(_content(one.get("content")) for one in value if one["role"] != "system")


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
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())


class TextStore:
    """Texts kept in a file. Memory: 8 bytes a text.

    Args:
        path: file to create.
    """

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
        begin, end = self._ends[place], self._ends[place + 1]
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
            first, last = int(ends[some[0]]), int(ends[some[-1] + 1])
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
