"""Decode the return value of a program to plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo_lightning.sandbox.inside.decode import decode as decode_with
from gspo_lightning.sandbox.inside.encode import encode

__all__ = ["Opaque", "decode", "encode"]


@dataclass(frozen=True, eq=False)
class Opaque:
    """A value that is not plain data; it equals nothing, not even itself.

    >>> Opaque("Foo") == Opaque("Foo")
    False
    """

    kind: str

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def decode(data: Any) -> Any:
    """Return the value that :func:`encode` described.

    >>> import json
    >>> value = [1, (2.5, float("inf")), {1: {"a"}}, 1 << 70]
    >>> decode(json.loads(encode(value))) == value
    True

    Raises:
        ValueError: not what :func:`encode` writes, or keys that collide.
    """
    return decode_with(data, lambda kind: Opaque(str(kind)))
