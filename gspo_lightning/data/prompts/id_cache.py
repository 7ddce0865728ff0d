"""Cache of token ids by text, bounded in bytes."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable

_ENTRY = 320
"""Bytes of an entry beside its ids: its key, its array and its place in the dictionary."""


class IdCache:
    """Token ids of the texts that were used last; a text is known by its digest, an id takes four bytes.

    Safe to use in several threads. What is computed twice at the same time is kept once.

    Args:
        limit: bytes of all entries together; a text whose ids take more is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        """Bytes of all entries."""
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str, compute: Callable[[], list[int]]) -> list[int]:
        """Return the ids of a text, computed now unless they are kept.

        >>> cache = IdCache(1000)
        >>> [cache.get(text, lambda: [7, 8]) for text in ("a", "b", "a")], cache.bytes
        ([[7, 8], [7, 8], [7, 8]], 656)
        """
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            kept = self._entries.get(key)
            if kept is not None:
                self._entries.move_to_end(key)
                return kept.tolist()
        ids = compute()
        entry = array("i", ids)
        with self._lock:
            if key not in self._entries and _size(entry) <= self.limit:
                self._entries[key] = entry
                self.bytes += _size(entry)
                while self.bytes > self.limit:
                    self.bytes -= _size(self._entries.popitem(last=False)[1])
        return ids


def _size(entry: array[int]) -> int:
    return _ENTRY + len(entry) * entry.itemsize
