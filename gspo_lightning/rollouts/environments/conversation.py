"""Conversation with one environment: checked answers, a deadline for each, and replay after a failure."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from gspo_lightning.core.errors import InfrastructureError, PluginError, UserError, defined, place_of
from gspo_lightning.core.escape import whole_values
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import Message, Prompt
from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rollouts.environments.environment import Environment, Step, result_of


class Conversation:
    """A conversation's history and its environment.

    An exception or a timeout of the environment becomes an :class:`InfrastructureError`. A ``UserError`` of the
    environment passes through, and an answer of the wrong type is one: a retry would give the same. After a failure a
    :meth:`successor` repeats the conversation with a fresh environment, whose answers must equal those that the policy
    has already read. The failed environment is not used again, even if it is still running.

    Args:
        template: the configured environment.
        prompt: the prompt of the conversation.
        seed: seed of the environment's own randomness.
        deadline_s: seconds for one answer.
    """

    def __init__(self, template: Environment, prompt: Prompt, seed: int, deadline_s: float) -> None:
        self.template = template
        self.prompt = prompt
        self.seed = seed
        self.deadline_s = deadline_s
        self.name = type(template).__name__
        self.opening: list[Message] | None = None
        self.steps: list[Step] = []
        self.said: list[str | Turn] = []
        self._environment: Environment | None = None

    async def begin(self) -> None:
        """Reset a fresh environment; sets :attr:`opening`."""
        self._environment = self._fresh()
        value = await self._call(self._environment.reset, self.prompt)
        opening = _messages(value, defined(self.template, "reset"))
        if self.opening is not None and opening != self.opening:
            raise InfrastructureError(f"{self.name}.reset answered differently on a retry")
        self.opening = opening

    async def answer(self) -> None:
        """Get the environment's answer to the newest of :attr:`said`; appends to :attr:`steps`."""
        self.steps.append(await self._step(self.said[len(self.steps)]))

    def successor(self) -> Conversation:
        """Return a copy of the conversation without an environment, for :meth:`again`."""
        other = Conversation(self.template, self.prompt, self.seed, self.deadline_s)
        other.opening = self.opening
        other.steps = list(self.steps)
        other.said = list(self.said)
        return other

    async def again(self) -> None:
        """Replay the whole conversation with a fresh environment, including the turn that has no answer yet."""
        earlier = self.steps
        await self.begin()
        for number, completion in enumerate(self.said):
            step = await self._step(completion)
            if number < len(earlier) and step != earlier[number]:
                raise InfrastructureError(f"{self.name}.step answered differently on a retry")
            if number == len(earlier):
                self.steps = [*earlier, step]

    async def close(self) -> None:
        """Close the environment."""
        environment = self._environment
        self._environment = None
        if environment is not None and type(environment).close is not Environment.close:
            await self._call(environment.close)

    def _fresh(self) -> Environment:
        try:
            environment = self.template.fresh()
        except Exception as error:
            raise UserError(
                self.name,
                f"cannot be copied for a conversation: {type(error).__name__}: {error}",
                fix="override fresh(), which makes the copy",
            ) from error
        environment.seed = self.seed
        return environment

    async def _step(self, turn: str | Turn) -> Step:
        assert self._environment is not None
        name = "act" if isinstance(turn, Turn) else "step"
        value = await self._call(getattr(self._environment, name), turn)
        return _step(value, defined(self.template, name))

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a plain or async method; a task that does not finish in time is abandoned.

        Raises:
            InfrastructureError: the method raised, or took longer than ``deadline_s``.
            UserError: the method raised one.
        """
        method_name = f"{self.name}.{method.__name__}"
        task = asyncio.ensure_future(result_of(method, *arguments))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.deadline_s)
        except asyncio.CancelledError:  # nobody waits for the answer any more
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise InfrastructureError(f"{method_name} gave no answer in {self.deadline_s:g} s")
        error = task.exception()
        if error is None or isinstance(error, UserError):
            return task.result()
        place = place_of(error)
        at = f" ({place})" if place is not None else ""
        raise InfrastructureError(f"{method_name} raised {type(error).__name__}: {str(error)[:300]}{at}") from error


def _messages(value: object, where: str) -> list[Message]:
    """Return the messages as plain dictionaries, after checking their types."""
    rule = 'a list of {"role": ..., "content": ...}, both texts (or text parts as content)'
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise PluginError.returned(where, f"{_show(value)}; messages must be a list", rule)
    for message in value:
        fields = message if isinstance(message, Mapping) else {}
        content = fields.get("content")
        silent = content is None and not fields.get("tool_calls")
        if not isinstance(fields.get("role"), str) or silent or answer_text(content) is None:
            raise PluginError.returned(where, f"the message {_show(message)}", rule)
    return [whole_values(message) for message in value]  # a tool may answer with half a character


def _step(value: object, where: str) -> Step:
    rule = "(messages, reward, done): what the policy reads next, a finite number, True or False"
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise PluginError.returned(where, f"{_show(value)}; it must be (messages, reward, done)", rule)
    messages, reward, done = value
    if isinstance(reward, str) or not isinstance(reward, SupportsFloat | SupportsIndex) or not math.isfinite(reward):
        raise PluginError.returned(where, f"the reward {_show(reward)}; it must be a finite number", rule)
    if not isinstance(done, bool) and type(done).__name__ not in ("bool", "bool_"):  # numpy's
        raise PluginError.returned(where, f"done = {_show(done)}; it must be True or False", rule)
    return _messages(messages, where), float(reward), bool(done)


def _show(value: object) -> str:
    text = repr(value)
    return f"{text[:77]}..." if len(text) > 80 else text
