"""Remote object: a program's object in the trusted process of a test; the program does each operation on it.

An object never answers a question about a plain value, because it could always say yes: it equals no plain value, and
``in`` looks at the items that it iterates over. Operations that only numbers, texts and collections have with another
value (``- 42``, ``.startswith("a")``) are refused, because a program that should return a number, a text or a
collection could return an object that has them. At most such an operation gives another object
(``.append(1).append(2)``), which is then neither true nor empty. Objects of a class that the test itself makes
(``Stack()``) may do anything. Objects are compared with each other by their own ``__eq__``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_DATA = frozenset(
    name
    for kind in (str, bytes, list, tuple, dict, set, int, float, complex)
    for name in dir(kind)
    if not name.startswith("__")
)


class Remote:
    """A name or an object of the program.

    Args:
        ask: does an operation there: ``ask(name, target, arguments, named)``.
        target: the name, or the number under which the program keeps the object.
        tested: the object is a class that the test names, or an instance that the test made of one.
        asked: the object came from a method that a text or a collection has, too.
    """

    __slots__ = ("_ask", "_asked", "_target", "_tested")
    _ask: Callable[..., Any]
    _target: int | str
    _tested: bool
    _asked: bool

    def __init__(
        self, ask: Callable[..., Any], target: int | str, *, tested: bool = False, asked: bool = False
    ) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_tested", tested)
        object.__setattr__(self, "_asked", asked)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the target; an instance of a class under test is under test, too."""
        value = self._ask("call", self._target, arguments, named)
        if isinstance(value, Remote) and self._tested and isinstance(self._target, str):
            return Remote(self._ask, value._target, tested=True)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name == "keys" and not self._tested):  # dict() would take it for a mapping
            raise AttributeError(f"an object of the program is not asked for {name}")
        if name not in _DATA or self._tested:
            return self._ask("get", self._target, (name,), {})
        return lambda *arguments, **named: self._object_of(name, arguments, named)

    def _object_of(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a method that texts and collections have, too: it returns an object or None, but no plain value."""
        value = self._ask("method", self._target, (name, *arguments), named)
        if isinstance(value, Remote):
            return Remote(self._ask, value._target, asked=True)
        if value is None:
            return None
        raise AttributeError(f"an object of the program is not asked for {name}")

    def _may_be_empty(self) -> None:
        if self._asked:
            raise TypeError("an object of the program is not asked whether it is empty")

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("set", self._target, (name, value), {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._ask("eq", self._target, (other,), {}) is True

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Remote) or self._ask("ne", self._target, (other,), {}) is True

    def __hash__(self) -> int:
        return int(self._ask("hash", self._target, (), {}))

    def __bool__(self) -> bool:
        self._may_be_empty()
        return self._ask("bool", self._target, (), {}) is True

    def __len__(self) -> int:
        self._may_be_empty()
        return int(self._ask("len", self._target, (), {}))

    def __str__(self) -> str:
        return str(self._ask("str", self._target, (), {}))

    def __repr__(self) -> str:
        return str(self._ask("repr", self._target, (), {}))

    def __iter__(self) -> Any:
        return self._ask("iter", self._target, (), {})

    def __next__(self) -> Any:
        return self._ask("next", self._target, (), {})

    def __contains__(self, value: object) -> bool:
        if self._tested:
            return self._ask("contains", self._target, (value,), {}) is True
        return any(value is item or value == item for item in iter(self))

    def __getitem__(self, key: object) -> Any:
        return self._ask("getitem", self._target, (key,), {})

    def __setitem__(self, key: object, value: object) -> None:
        self._ask("setitem", self._target, (key, value), {})

    def __delitem__(self, key: object) -> None:
        self._ask("delitem", self._target, (key,), {})

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and self._ask("isinstance", self._target, (value,), {}) is True

    def __enter__(self) -> Any:
        return self._ask("enter", self._target, (), {})

    def __exit__(self, *error: object) -> None:
        self._ask("exit", self._target, (), {})


def _binary(name: str, *, reflected: bool) -> Callable[[Remote, Any], Any]:
    def operate(self: Remote, other: Any) -> Any:
        if not isinstance(other, Remote) and not self._tested:
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return self._ask(name, None, pair, {})

    return operate


def _unary(name: str) -> Callable[..., Any]:
    def operate(self: Remote, *more: Any) -> Any:
        if not self._tested:
            raise TypeError(f"an object of the program is not asked for {name}")
        return self._ask(name, self._target, more, {})

    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _there = f"{_name}_" if _name in ("and", "or") else _name
    setattr(Remote, f"__{_name}__", _binary(_there, reflected=False))
    setattr(Remote, f"__r{_name}__", _binary(_there, reflected=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _binary(_name, reflected=False))
for _name in ("neg", "pos", "abs", "int", "float", "round", "invert"):
    setattr(Remote, f"__{_name}__", _unary(_name))
