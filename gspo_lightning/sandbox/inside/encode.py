"""Python values as JSON text that keeps what JSON forgets: tuples, sets, keys that are no text, large integers.

What a program returns is copied by the methods of the built-in types, so that an object with an ``__eq__`` of its own
leaves as plain data, or as the name of its type. Written by hand because importing json takes as long as a small
program.
"""

from __future__ import annotations

from _json import encode_basestring_ascii

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["encode", "text_of"]

_EXACT = 1 << 53


def encode(value: object) -> str:
    """A value as JSON; a JSON object is always ``{tag: content}``.

    >>> encode([1, (2.5, None), {"a": {1}}])
    '[1, {"tuple": [2.5, null]}, {"dict": [["a", {"set": [1]}]]}]'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        number = int.__index__(value)
        return int.__repr__(number) if -_EXACT < number < _EXACT else _tag("int", text_of(hex(number)))
    if isinstance(value, float):
        digits = float.__repr__(value)
        return _tag("float", text_of(digits)) if digits in ("nan", "inf", "-inf") else digits
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return _list(list.__iter__(value))
    if isinstance(value, tuple):
        return _tag("tuple", _list(tuple.__iter__(value)))
    if isinstance(value, dict):
        return _tag("dict", _list(list(pair) for pair in dict.items(value)))
    if isinstance(value, set | frozenset):
        return _tag("set", _list(list(value)))
    if isinstance(value, bytes | bytearray):
        return _tag("bytes", text_of(bytes(value).hex()))
    if isinstance(value, complex):
        return _tag("complex", _list([value.real, value.imag]))
    return _tag("object", text_of(type(value).__name__[:80]))


def text_of(text: str) -> str:
    """A text as JSON."""
    return str(encode_basestring_ascii(str.__str__(text)))


def _list(values: Iterable[object]) -> str:
    return "[" + ", ".join([encode(value) for value in values]) + "]"


def _tag(tag: str, content: str) -> str:
    return f'{{"{tag}": {content}}}'
