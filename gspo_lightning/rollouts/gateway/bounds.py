"""Bounds of one session, checked before work, and what is too large for the event loop of all sessions."""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from gspo_lightning.core.escape import whole_values

LOOP_BYTES = 64 << 10
"""Largest body, text or answer in bytes that is parsed or rendered on the event loop; a thread takes larger ones."""
BODY_BYTES = 16 << 20
"""Bytes of the bodies of a session's open requests together."""
REWARD_BYTES = 64 << 10
"""Bytes of a reward."""
OPEN_REQUESTS = 64
"""Requests of a session at the same time."""
MOST_VALUES = 1 << 18
"""JSON values (texts, numbers, lists, objects) of a request; a value of two bytes takes up to a hundred in memory."""
SESSION_BYTES = 64 << 20
"""Characters of messages and tools that a session keeps."""
MOST_STOPS = 64
"""Stop texts of a request."""
STOP_CHARACTERS = 1024
"""Characters of a stop text."""
SETTING_CHARACTERS = 1024
"""Characters of a setting of sampling that is recorded as it was asked for."""

_left: ContextVar[list[int]] = ContextVar("left")
_P = ParamSpec("_P")
_T = TypeVar("_T")


async def aside(size: int, lock: asyncio.Lock, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return what ``work`` returns: called here if it is small, else in a thread.

    Args:
        size: bytes that it parses or renders.
        lock: of the session, whose large pieces of work come one after another.
        work: what to do; it changes nothing that the event loop uses.
        args: of ``work``.
        kwargs: of ``work``.
    """
    if size <= LOOP_BYTES:
        return work(*args, **kwargs)
    async with lock:
        return await asyncio.to_thread(work, *args, **kwargs)


@contextmanager
def counted_values() -> Iterator[None]:
    """Let all texts that :func:`load` parses inside have :data:`MOST_VALUES` values together."""
    token = _left.set([MOST_VALUES])
    try:
        yield
    finally:
        _left.reset(token)


def load(text: str | bytes | bytearray) -> Any:
    """Return the values of a JSON text, with the halves of characters escaped.

    A large text is parsed by Python's own decoder, which lets other threads work in between and counts values while it
    makes them.

    Raises:
        ValueError: it is not JSON, or has too many values.
        RecursionError: it is nested too deeply.

    >>> load(b'{"a": "\\\\ud83d", "b": [1]}')
    {'a': '\\\\ud83d', 'b': [1]}
    """
    if isinstance(text, bytes | bytearray):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    left = _left.get([MOST_VALUES])
    if len(text) <= LOOP_BYTES:
        left[0] -= sum(text.count(mark) for mark in ",[{")
        value = json.loads(text)
    else:
        value = _Decoder(left).decode(text)
    if left[0] < 0:
        raise _too_many()
    return value if "\\u" not in text and text.isascii() else whole_values(value)


def weight(value: Any) -> int:
    """Return the characters of JSON values: those of all texts and names, and one for every value."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, Mapping):
        return 1 + sum(len(str(name)) + weight(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return 1 + sum(map(weight, value))
    return 1


class _Decoder(json.JSONDecoder):
    """Decoder in Python that counts down for every value."""

    def __init__(self, left: list[int]) -> None:
        super().__init__()
        self._left = left
        self._scan: Callable[..., Any] | None = None
        self.parse_object = self._object
        self.parse_array = self._array
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _object(self, at: Any, strict: bool, scan: Callable[..., Any], *options: Any) -> Any:
        return json.decoder.JSONObject(at, strict, self._counted(scan), *options)  # type: ignore[attr-defined]

    def _array(self, at: Any, scan: Callable[..., Any], *options: Any) -> Any:
        return json.decoder.JSONArray(at, self._counted(scan), *options)  # type: ignore[attr-defined]

    def _counted(self, scan: Callable[..., Any]) -> Callable[..., Any]:
        if self._scan is None:

            def counting(text: str, at: int) -> Any:
                self._left[0] -= 1
                if self._left[0] < 0:
                    raise _too_many()
                return scan(text, at)

            self._scan = counting
        return self._scan


def _too_many() -> ValueError:
    return ValueError(f"it has more than {MOST_VALUES} values")
