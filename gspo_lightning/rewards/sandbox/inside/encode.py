"""Encode Python values as JSON text that keeps what JSON loses: tuples, sets, non-string keys, large integers.

The return value of a program is copied by the methods of the built-in types: an object with its own ``__eq__`` leaves
as plain data, or as the name of its type. Written by hand because importing json takes as long as a small program.
"""

from __future__ import annotations

from _json import encode_basestring_ascii

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_EXACT = 1 << 53


def encode(value: object, other: Callable[[object], str] | None = None) -> str:
    """Return a value as JSON; a JSON object is always ``{tag: content}``.

    Args:
        value: any.
        other: writes an object that is not plain data; None writes the name of its type.

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
        return _list(list.__iter__(value), other)
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None)
        if names is not None and len(names) == len(value):
            return _tag("named", _list([type(value).__name__, list(names), list(tuple.__iter__(value))], other))
        return _tag("tuple", _list(tuple.__iter__(value), other))
    if isinstance(value, dict):
        tag = _MAPPINGS.get((type(value).__module__, type(value).__name__), "dict")
        return _tag(tag, _list((list(pair) for pair in dict.items(value)), other))
    if isinstance(value, set | frozenset):
        return _tag("set" if isinstance(value, set) else "frozenset", _list(list(value), other))
    if isinstance(value, bytes | bytearray):
        return _tag("bytes", text_of(bytes(value).hex()))
    if isinstance(value, complex):
        return _tag("complex", _list([value.real, value.imag]))
    write = _KNOWN.get((type(value).__module__, type(value).__name__))
    if write is not None:
        return write(value, other)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), other)  # arrays and numbers
    return other(value) if other else _tag("object", text_of(type(value).__name__[:80]))


def text_of(text: str) -> str:
    """Return a text as JSON."""
    return str(encode_basestring_ascii(str.__str__(text)))


def _list(values: Iterable[object], other: Callable[[object], str] | None = None) -> str:
    return "[" + ", ".join([encode(value, other) for value in values]) + "]"


def _tag(tag: str, content: str) -> str:
    return f'{{"{tag}": {content}}}'


def _fields(tag: str, *names: str) -> Callable[..., str]:
    return lambda value, _: _tag(tag, _list([getattr(value, name) for name in names]))


_MAPPINGS = {("collections", "Counter"): "counter", ("collections", "OrderedDict"): "ordered"}
_DAY = ("year", "month", "day")
_KNOWN: dict[tuple[str, str], Callable[..., str]] = {
    ("decimal", "Decimal"): lambda value, _: _tag("decimal", text_of(str(value))),
    ("fractions", "Fraction"): _fields("fraction", "numerator", "denominator"),
    ("builtins", "range"): _fields("range", "start", "stop", "step"),
    ("collections", "deque"): lambda value, other: _tag("deque", _list(value, other)),
    ("datetime", "date"): _fields("date", *_DAY),
    ("datetime", "datetime"): _fields("datetime", *_DAY, "hour", "minute", "second", "microsecond"),
    ("datetime", "timedelta"): _fields("timedelta", "days", "seconds", "microseconds"),
}
"""Types of the standard library that are values: they are rebuilt outside as the same type."""
