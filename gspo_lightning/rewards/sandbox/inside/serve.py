"""The program's side of a test that is a script: answer calls one by one, without seeing the script.

Requests come from the trusted process of the test (``examine.py``) as marshalled data: the name of an operation, its
target, and arguments, which are all that the program learns. Replies are JSON: values as ``encode.py`` writes them,
objects by a number under which they are kept here, errors by the names of their classes. All of it is the program's own
claim.
"""

from __future__ import annotations

import marshal
import operator
import os
import sys

from gspo_lightning.rewards.sandbox.inside import channel
from gspo_lightning.rewards.sandbox.inside.encode import encode, text_of

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PRINTED = 1 << 20
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "get": getattr,
    "method": lambda owner, name, *arguments, **named: getattr(owner, name)(*arguments, **named),
    "set": setattr,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "hash": hash,
    "int": int,
    "float": float,
    "round": round,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "await": lambda coroutine: _wait(coroutine),
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager: type(manager).__exit__(manager, None, None, None),
}


def serve(resolve: Callable[[str], Any]) -> None:
    """Answer until told to end.

    Args:
        resolve: returns the program's object of a name.
    """
    server = _Server(resolve)
    while (request := channel.receive()) is not None:
        if not server.answer(*marshal.loads(request)):
            return


def _wait(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


class _Server:
    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self.resolve = resolve
        self.seen = 0
        self.kept: list[Any] = []

    def answer(self, name: str, target: int | str | None, packed: bool, arguments: Any, named: Any) -> bool:
        """Do one operation; return False at the end."""
        if name == "end":
            return False
        try:
            if packed:
                arguments = self.unpack(arguments)
                named = self.unpack(named)
            if target is not None:
                owner = self.kept[target] if isinstance(target, int) else self.resolve(target)
                arguments = (owner, *arguments)
            mutable = [i for i, a in enumerate(arguments) if type(a) in (list, dict, set)] if name == "call" else []
            before = [encode(arguments[i], _shown) for i in mutable]
            operate = _OPERATIONS.get(name) or getattr(operator, name)
            value = operate(*arguments, **named)
            reply = f'"value": {encode(value, self.keep)}'
            if mutable:
                after = [encode(arguments[i], self.keep) for i in mutable]
                changes = zip(mutable, before, after, strict=True)
                pairs = [f"[{i - 1}, {new}]" for i, old, new in changes if old != new]  # without the function itself
                reply += f', "changed": [{", ".join(pairs)}]'
        except BaseException as error:
            reply = self.failure(error)
        channel.send(f"{{{reply}{self.printed()}}}".encode("ascii"))
        return True

    def printed(self) -> str:
        """Return what the program printed since the last call, for tests that check it."""
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        text = os.pread(1, _PRINTED, self.seen)
        self.seen += len(text)
        return f', "printed": {text_of(text.decode("utf-8", "replace"))}' if text else ""

    def keep(self, value: object) -> str:
        """Keep an object and return it as JSON: its number, and whether it must be awaited."""
        self.kept.append(value)
        waits = type(value).__name__ == "coroutine"
        return f'{{"object": [{len(self.kept) - 1}, {str(waits).lower()}]}}'

    def failure(self, error: BaseException) -> str:
        """Return an error as JSON: the names of its classes, and its message."""
        names = ", ".join(text_of(kind.__name__[:80]) for kind in type(error).__mro__[:20])
        try:
            text = str(error)[:1000]
        except BaseException:  # an error of the program's own making
            text = ""
        return f'"error": [{names}], "text": {text_of(text)}'

    def unpack(self, packed: tuple[str, Any]) -> Any:
        """Unpack an argument that is not plain data: objects of this side, functions of the other, and containers."""
        kind, content = packed
        if kind == "object":
            return self.kept[content] if isinstance(content, int) else self.resolve(content)
        if kind == "function":
            return self.callback(content)
        if kind == "list":
            return [self.unpack(item) for item in content]
        if kind == "tuple":
            return tuple([self.unpack(item) for item in content])
        if kind == "set":
            return {self.unpack(item) for item in content}
        if kind == "dict":
            return {self.unpack(key): self.unpack(value) for key, value in content}
        if kind == "record":
            return self.record(*content)
        if kind == "encoded":
            import json

            from gspo_lightning.rewards.sandbox.inside.decode import decode

            return decode(json.loads(content), lambda _: None)
        return content

    def record(self, name: str, fields: Any) -> Any:
        """Make an instance of a class that both sides have, from its fields (a node of a list or a tree)."""
        instance = object.__new__(self.resolve(name))
        instance.__dict__.update({key: self.unpack(value) for key, value in fields})
        return instance

    def callback(self, number: int) -> Callable[..., Any]:
        """Return a function of the test: calling it asks the other side, which may ask back meanwhile."""

        def call(*arguments: Any) -> Any:
            channel.send(f'{{"callback": {number}, "arguments": {encode(list(arguments), self.keep)}}}'.encode("ascii"))
            while (request := channel.receive()) is not None:
                name, target, packed, given, named = marshal.loads(request)
                if name == "returned":
                    return self.unpack(given) if packed else given
                if name == "raised":
                    raise RuntimeError(given)
                self.answer(name, target, packed, given, named)
            raise EOFError("the test has ended")

        return call


def _shown(value: object) -> str:
    """Return an object as text, for comparison only."""
    return f'"{id(value)}"'
