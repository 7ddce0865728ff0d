"""What a program returned, as plain data again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo_lightning.sandbox.inside.encode import encode

__all__ = ["Opaque", "decode", "encode"]


@dataclass(frozen=True, eq=False)
class Opaque:
    """A value that is no plain data; it equals nothing, not even itself.

    >>> Opaque("Foo") == Opaque("Foo")
    False
    """

    kind: str

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def decode(data: Any) -> Any:
    """The value that :func:`encode` described.

    >>> import json
    >>> value = [1, (2.5, float("inf")), {1: {"a"}}, 1 << 70]
    >>> decode(json.loads(encode(value))) == value
    True

    Raises:
        ValueError: not what :func:`encode` writes.
    """
    if isinstance(data, list):
        return [decode(v) for v in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("an object with more than one tag")
    ((tag, content),) = data.items()
    try:
        return _DECODERS[tag](content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a value: {tag[:80]!r}") from error


_DECODERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": lambda items: tuple(decode(v) for v in items),
    "dict": lambda pairs: {decode(k): decode(v) for k, v in pairs},
    "set": lambda items: {decode(v) for v in items},
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(decode(parts[0]), decode(parts[1])),
    "object": Opaque,
}
