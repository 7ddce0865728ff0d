"""Environment interface: open a conversation, and answer the policy's turns until it is over."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import Message, Prompt

Messages = Sequence[Message]
"""Messages as chat templates take them: ``[{"role": "user", "content": "..."}]``.

Plain-text tokenizers read the contents only.
"""
Step = tuple[Messages, float, bool]
"""The environment's messages, the reward of the turn, and whether the conversation is over."""


class Environment(ABC):
    """Base class of environments, the other side of a conversation. A subclass is registered under its name.

    The configured object is a template: every conversation gets its own copy (:meth:`fresh`), which may keep
    state in attributes. Methods may be ``async`` (hundreds wait at the same time) or plain (each call runs in its own
    thread). Exceptions and timeouts count as infrastructure failures: the call is repeated
    on a fresh copy, and if that fails too, the conversation is *missing*. A return value of a wrong type stops the run
    at once. Mistakes of the policy are for :meth:`step` to answer.

    The same calls must get the same answers: all randomness comes from :attr:`seed`.
    """

    seed: int = 0
    """64-bit seed of this conversation (run, iteration, prompt and sample); set before :meth:`reset`."""
    max_concurrent: int = 64
    """Maximum number of conversations answered at the same time; others wait, and their deadlines with them."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a subclass with a wrong method signature.

        Raises:
            UserError: ``reset`` or ``step`` cannot be called with one argument.
        """
        super().__init_subclass__(**options)
        for name, argument in (("reset", "prompt"), ("step", "completion")):
            if name in cls.__dict__:
                _check_signature(cls, name, argument)

    @abstractmethod
    def reset(self, prompt: Prompt) -> Messages | Awaitable[Messages]:
        """Begin the conversation.

        Returns:
            Messages that the policy reads instead of the prompt; ``[]`` keeps the prompt as it is. They must be the
            same for every conversation about a prompt: a group compares answers to one question.
        """

    @abstractmethod
    def step(self, completion: str) -> Step | Awaitable[Step]:
        """Answer the policy's turn (its text without special tokens).

        Returns:
            ``(messages, reward, done)``: messages that the policy reads next (never trained on), a finite reward for
            this turn, and whether the conversation is over.
        """

    def offer(self, template_knows_tools: bool) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of tools for the chat template to show; asked once before conversations begin.

        With any, each turn of the policy goes to :meth:`act`, with its calls read as the template writes them.
        """
        return ()

    def act(self, turn: Turn) -> Step | Awaitable[Step]:
        """Answer a turn whose calls have been read; needed only if :meth:`offer` returns tools.

        A message that answers a call has its ``tool_call_id``.
        """
        return self.step(turn.content)

    def close(self) -> Awaitable[None] | None:
        """Release the resources of this conversation; called once, also after a failure."""
        return None

    def release(self) -> None:  # noqa: B027 (most environments share nothing)
        """Release what all conversations share; called at the end of a run, on the template."""

    def fresh(self) -> Self:
        """Return a copy for one conversation; override it to share something (a client, a table)."""
        return copy.deepcopy(self)


def _check_signature(cls: type[Environment], name: str, argument: str) -> None:
    method = cls.__dict__[name]
    fix = f"write def {name}(self, {argument}), plain or async"
    if not inspect.isfunction(method) or inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise UserError(f"{cls.__qualname__}.{name}", "is not a plain or async method", fix=fix)
    try:
        inspect.signature(method).bind(None, None)
    except TypeError as error:
        raise UserError(
            f"{cls.__qualname__}.{name}", f"cannot be called with the {argument}: {error}", fix=fix
        ) from error


async def result_of(method: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an ``async`` method on this loop, or of a plain one in a thread.

    ``SystemExit`` and ``KeyboardInterrupt`` are re-raised as ``RuntimeError``.
    """
    try:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        value = await _in_thread(method, arguments)
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt) as error:  # raised in a task, they would end the event loop
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def _in_thread(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a function in a daemon thread: unlike an executor's thread, a hanging one does not block process exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():  # it may have been cancelled
            future.set_result(value) if error is None else future.set_exception(error)

    def work() -> None:
        value = None
        failure: BaseException | None = None
        try:
            value = function(*arguments)
        except BaseException as error:
            # a future takes no StopIteration
            failure = RuntimeError(str(error)) if isinstance(error, StopIteration) else error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="environment-method", daemon=True).start()
    return await future
