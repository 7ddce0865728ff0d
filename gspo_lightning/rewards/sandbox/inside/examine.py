"""Run a test that is a script: the program is in another sandbox and answers calls (``serve.py``).

The script is the record's, and trusted only so far: the expected values are here and nowhere else, and every value
from the program is rebuilt from JSON as trusted types, or stays an object there (``remote.py``).
"""

from __future__ import annotations

import builtins
import json
import marshal
import os
import sys

from gspo_lightning.rewards.sandbox.inside import channel, shims
from gspo_lightning.rewards.sandbox.inside.decode import decode
from gspo_lightning.rewards.sandbox.inside.encode import encode
from gspo_lightning.rewards.sandbox.inside.remote import Remote

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TESTS_OWN = (NameError, ImportError, SyntaxError)
"""Errors that no value of a program can cause: the script itself is at fault."""
_STOPS = (StopIteration, StopAsyncIteration)
_LAZY = (
    "map",
    "filter",
    "iter(",
    "takewhile",
    "dropwhile",
    "starmap",
    "accumulate",
    "groupby",
    "__next__",
    "__getitem__",
)
"""Words of a script that may mistake a StopIteration of a function that it calls for the end of an iteration."""


def examine(test: Mapping[str, Any], script: str) -> list[Any]:
    """Return ``[verdict, why, changed]``: ``passed``, ``failed``, or ``broken`` if the script itself is at fault.

    Args:
        test: ``names`` maps a name in the script to its name in the program; ``classes`` are those it instantiates.
            ``changes``: the script sees every change of an argument; otherwise only that of a call that returns None,
            and ``changed`` says whether there was another.
        script: must run to its end.
    """
    peer = _Peer(
        changes=test["changes"], expects_stops="StopIteration" in script and not any(word in script for word in _LAZY)
    )
    namespace = peer.namespace = {"__name__": "tests", "__builtins__": builtins}
    for name, there in test["names"].items():
        namespace[name] = Remote(peer.ask, there, tested=name in test["classes"])
    sys.setrecursionlimit(20000)
    shims.install()
    shims.strict_allclose()
    try:
        exec(compile(script, "tests.py", "exec", dont_inherit=True), namespace)
        shims.run_collected(namespace)
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"[:300]
        of_script = isinstance(error, _TESTS_OWN) and not getattr(error, "of_the_program", False)
        return ["broken" if of_script or not peer.answers else "failed", why, peer.changed]
    if not peer.answers:
        return ["broken", "the test never calls the program", False]
    return ["passed", "", peer.changed]


class _Peer:
    """The program, as seen from the script's side.

    Args:
        changes: apply what a call changed in its arguments even if it returned a value.
        expects_stops: pass a StopIteration of a call on unchanged.
    """

    def __init__(self, *, changes: bool, expects_stops: bool) -> None:
        self.changes = changes
        self.expects_stops = expects_stops
        self.answers = 0
        self.changed = False
        self.functions: list[Any] = []
        self.namespace: dict[str, Any] = {}

    def ask(self, name: str, target: int | str | None, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Ask the program for one operation.

        Raises:
            Exception: what the program raised, as an exception of the same built-in kind.
        """
        self.send(name, target, arguments, named)
        while True:
            reply = self.receive()
            if "callback" not in reply:
                break
            self.call_back(reply)
        if "printed" in reply:
            sys.stdout.write(str(reply["printed"]))
        if "error" in reply:
            raise self.error(reply, name)
        for number, value in reply.get("changed", ()):
            if self.changes or reply["value"] is None:
                self.change(arguments[int(number)], decode(value, self.remote))
            else:
                self.changed = True
        return decode(reply["value"], self.remote)

    def send(self, name: str, target: int | str | None, arguments: Any, named: Any) -> None:
        """Send the arguments unchanged if marshal takes them, which is quick, else piece by piece."""
        try:
            body = marshal.dumps((name, target, False, arguments, named))
        except ValueError:
            body = marshal.dumps((name, target, True, self.pack(arguments), self.pack(named)))
        channel.send(body)

    def receive(self) -> dict[str, Any]:
        """Return a reply; at the end of the channel, end this process: whoever waits for it has seen the end, too."""
        self.answers += 1  # from here on the program may be at fault, whatever the reply is
        body = channel.receive()
        if body is None:
            os._exit(1)
        reply = json.loads(body)
        if not isinstance(reply, dict):
            raise ValueError("no reply")
        return reply

    def call_back(self, reply: Mapping[str, Any]) -> None:
        """Call a function of the test for the program."""
        try:
            value = self.functions[int(reply["callback"])](*decode(reply["arguments"], self.remote))
        except Exception as error:
            self.send("raised", None, f"{type(error).__name__}: {error}"[:300], {})
            return
        self.send("returned", None, value, {})

    def remote(self, content: Any) -> Any:
        """Return an object of the program, or a coroutine that has the program await it."""
        number, waits = content
        return self.awaited(int(number)) if waits is True else Remote(self.ask, int(number))

    async def awaited(self, number: int) -> Any:
        """Return the result of a coroutine of the program."""
        return self.ask("await", number, (), {})

    def error(self, reply: Mapping[str, Any], operation: str) -> Exception:
        """Return an exception of the nearest built-in class, named like the program's class.

        Only ``next`` may see the end of an iterator: ``all(map(f, tests))`` would hold if a call of f could stop it.
        """
        names = [str(name) for name in reply["error"]]
        base: type[Exception] = RuntimeError
        for name in names:
            cls = getattr(builtins, name, None)
            if isinstance(cls, type) and issubclass(cls, Exception):
                base = cls
                break
        if issubclass(base, _STOPS) and operation != "next" and not self.expects_stops:
            base = RuntimeError
        kind = type(names[0] if names else "Error", (base,), {"of_the_program": True})
        try:
            error = kind(str(reply.get("text", "")))
        except TypeError:  # the exception needs more than a text
            error = type("Error", (RuntimeError,), {"of_the_program": True})(str(reply.get("text", "")))
        assert isinstance(error, Exception)
        return error

    def change(self, argument: Any, value: Any) -> None:
        """Apply to an argument the change that the program made to its copy."""
        if isinstance(argument, list) and isinstance(value, list):
            argument[:] = value
        elif isinstance(argument, dict | set) and type(argument) is type(value):
            argument.clear()
            argument.update(value)

    def pack(self, value: Any) -> tuple[str, Any]:
        """Pack a value with objects or functions in it, for :meth:`_Server.unpack`."""
        if isinstance(value, Remote):
            return ("object", value._target)
        if type(value) in (list, tuple, set, frozenset):
            kind = "set" if isinstance(value, set | frozenset) else type(value).__name__
            return (kind, [self.pack(item) for item in value])
        if type(value) is dict:
            return ("dict", [(self.pack(key), self.pack(item)) for key, item in value.items()])
        if _plain(value):
            return ("plain", value)
        kept = type(value).__name__
        if self.namespace.get(kept) is type(value) and hasattr(value, "__dict__"):
            return ("record", (kept, [(key, self.pack(item)) for key, item in vars(value).items()]))
        if callable(value):
            self.functions.append(value)
            return ("function", len(self.functions) - 1)
        return ("encoded", encode(value))


def _plain(value: Any) -> bool:
    """True if marshal takes the value."""
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True
