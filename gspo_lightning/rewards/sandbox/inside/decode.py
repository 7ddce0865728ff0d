"""Decode the output of :func:`encode` to values of trusted types only, whatever the text says."""

from __future__ import annotations

from gspo_lightning.rewards.sandbox.inside.hashing import checked

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Named(tuple):
    """A tuple whose items have names, kept as text; it equals the plain tuple."""

    name: str
    fields: list[str]

    def __new__(cls, parts: list[Any], other: Callable[[Any], Any]) -> Named:
        """Build from the output of :func:`encode`: the name of the type, the names of the items, and the items."""
        named = super().__new__(cls, decode(parts[2], other))
        named.name = str(parts[0])
        named.fields = [str(name) for name in parts[1]]
        return named

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", ())
        if name not in fields:
            raise AttributeError(name)
        return self[fields.index(name)]


_MOST_BITS = 1 << 16


def decode(data: Any, other: Callable[[Any], Any]) -> Any:
    """Return the value that :func:`encode` described.

    Args:
        data: from JSON.
        other: makes the stand-in for an object that is not plain data, from its written form.

    Raises:
        ValueError: not the output of :func:`encode`, or keys that collide.
    """
    if isinstance(data, list):
        return [decode(v, other) for v in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("an object with more than one tag")
    ((tag, content),) = data.items()
    try:
        return other(content) if tag == "object" else _DECODERS[tag](content, other)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"not a value: {tag[:80]!r}") from error


def _dict(pairs: list[list[Any]], other: Callable[[Any], Any]) -> Any:
    keys = checked([decode(key, other) for key, _ in pairs])
    values = [decode(value, other) for _, value in pairs]
    return dict(zip(keys, values, strict=True))


def _decimal(text: str, _: object) -> Any:
    from decimal import Decimal

    number = Decimal(text)
    if number.is_snan():
        raise ValueError("a number that may not be compared")
    return number


def _fraction(parts: list[Any], other: Callable[[Any], Any]) -> Any:
    from fractions import Fraction

    numerator = decode(parts[0], other)
    denominator = decode(parts[1], other)
    if max(numerator.bit_length(), denominator.bit_length()) > _MOST_BITS:
        raise ValueError("a fraction of numbers that would take minutes to reduce")
    return Fraction(numerator, denominator)


def _deque(items: list[Any], other: Callable[[Any], Any]) -> Any:
    from collections import deque

    return deque(decode(v, other) for v in items)


def _collection(name: str) -> Callable[..., Any]:
    def build(pairs: list[Any], other: Callable[[Any], Any]) -> Any:
        import collections

        return getattr(collections, name)(_dict(pairs, other))

    return build


def _calendar(name: str) -> Callable[..., Any]:
    def build(parts: list[int], _: object) -> Any:
        import datetime

        return getattr(datetime, name)(*parts)

    return build


_DECODERS: dict[str, Any] = {
    "int": lambda text, _: int(text, 16),
    "float": lambda text, _: float(text),
    "tuple": lambda items, other: tuple([decode(v, other) for v in items]),
    "dict": _dict,
    "set": lambda items, other: set(checked([decode(v, other) for v in items])),
    "frozenset": lambda items, other: frozenset(checked([decode(v, other) for v in items])),
    "named": lambda parts, other: Named(parts, other),
    "counter": _collection("Counter"),
    "ordered": _collection("OrderedDict"),
    "bytes": lambda text, _: bytes.fromhex(text),
    "complex": lambda parts, other: complex(decode(parts[0], other), decode(parts[1], other)),
    "decimal": _decimal,
    "fraction": _fraction,
    "range": lambda parts, other: range(*(decode(v, other) for v in parts)),
    "deque": _deque,
    "date": _calendar("date"),
    "datetime": _calendar("datetime"),
    "timedelta": _calendar("timedelta"),
}
