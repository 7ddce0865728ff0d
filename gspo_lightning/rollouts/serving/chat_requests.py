"""Chat requests to a server, or completions if the model cannot chat."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gspo_lightning.core.neutral_sampling import EXTENSIONS, NEUTRAL, refused_fields
from gspo_lightning.core.thinking import CLOSES, OPENS, opens_thought
from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError

log = logging.getLogger(__name__)
SERVER_DECIDES = ("chat template", "end tokens")
"""What every server decides."""
_TAKE_ALL = ("vllm", "sglang")
"""Engines that take all fields of neutral sampling."""
_THOUGHTS = ("reasoning", "reasoning_content")
"""Fields of a message in which servers with a reasoning parser put a thought."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer of a server."""

    text: str
    truncated: bool
    unfinished_thought: bool = False
    """True if it ends inside a thought that the server's chat template has opened."""


class ChatRequests:
    """Client of the chat route; a model without a chat template completes the prompt as it is.

    Args:
        client: connection to the server.
        model: name under which the server serves it.
    """

    def __init__(self, client: Client, model: str) -> None:
        self.client = client
        self.model = model
        self.chat = True
        """True while the model is believed to support chat."""
        self.refused: set[str] = set()
        """Neutral sampling fields that the server refuses: it decides them."""
        self.owner = ""
        """Engine of the server, as it names itself (``vllm``)."""
        self.opened: bool | None = None
        """True if its chat template opens a thought; None if the server does not show what it renders."""
        self.separated = False
        """True if the server has put a thought into a field of its own."""

    async def probe(self) -> None:
        """Ask what the server takes: whether it refuses neutral sampling, and how its chat template ends a prompt.

        A server that fails says so when it is asked for an answer.

        Raises:
            UnsupportedError: it refuses a short request.
        """
        messages = [{"role": "user", "content": "."}]
        with suppress(ServerError):
            await self.ask(messages, {"max_tokens": 1, "temperature": 0.0})
        with suppress(ServerError):
            self.owner = await self.client.owner()
        if self.chat:
            rendered = await self.client.rendered(self.model, messages)
            self.opened = None if rendered is None else opens_thought(rendered)

    def described(self) -> dict[str, Any]:
        """Return what answers are sampled with, and what the server still decides, for results."""
        unsure = [] if self.owner in _TAKE_ALL else [name for name in EXTENSIONS if name not in self.refused]
        return {
            "engine": self.owner,
            "neutral": {name: value for name, value in NEUTRAL.items() if name not in self.refused},
            "server_decides": [*SERVER_DECIDES, *sorted(self.refused)],
            "server_may_ignore": unsure,
            "thought_opened_by_template": self.opened,
        }

    async def ask(
        self, messages: Sequence[Mapping[str, str]], body: Mapping[str, Any]
    ) -> tuple[list[ChatAnswer], dict[str, Any]]:
        """Return the answers (one, unless ``body`` asks for more), and the server's token counts (``usage``).

        Raises:
            ServerError: the server does not answer, or its reply holds no answer.
            UnsupportedError: it refuses the request.
        """
        reply = await self._neutral(messages, body)
        try:
            answers = [self._answer(choice) for choice in reply["choices"]]
            counts = dict(reply.get("usage") or {})
            usage = {name: n for name, n in counts.items() if type(n) is int and 0 <= n < 1 << 53}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ServerError(f"it sent no answer: {str(reply)[:100]!r}") from error
        if not answers:
            raise ServerError(f"it sent no answer: {str(reply)[:100]!r}")
        return answers, usage

    async def _neutral(self, messages: Sequence[Mapping[str, str]], body: Mapping[str, Any]) -> Any:
        """Return the reply to a request with neutral values for the fields of sampling that it leaves out."""
        while True:
            added = {name: value for name, value in NEUTRAL.items() if name not in body and name not in self.refused}
            try:
                return await self._reply(messages, {"model": self.model, **added, **body})
            except UnsupportedError as error:
                refused = refused_fields(str(error), added)
                if not refused:
                    raise
                if refused - self.refused:
                    log.warning("%s refuses %s: it decides them", self.model, ", ".join(sorted(refused)))
                self.refused |= refused

    async def _reply(self, messages: Sequence[Mapping[str, str]], body: dict[str, Any]) -> Any:
        if self.chat:
            try:
                return await self.client.chat({**body, "messages": list(messages)})
            except UnsupportedError as error:
                reason = str(error).lower()
                if len(messages) > 1 or not ("template" in reason or "status 404" in reason):
                    raise
                if self.chat:
                    log.warning("%s cannot chat: prompts are completed as they are", self.model)
                self.chat = False
        if len(messages) > 1:
            raise UnsupportedError(f"{self.model} has no chat template: it takes one message, got {len(messages)}")
        return await self.client.complete({**body, "prompt": messages[0]["content"]})

    def _answer(self, choice: Mapping[str, Any]) -> ChatAnswer:
        message = choice.get("message") or {}
        text = answer_text(message.get("content") if "message" in choice else choice["text"])
        if text is None:
            raise TypeError("its content is no text")
        self.separated |= any(message.get(name) for name in _THOUGHTS)
        inside = bool(self.opened and self.chat and not self.separated)
        unfinished = inside and not (OPENS.search(text) or CLOSES.search(text))
        return ChatAnswer(text, choice.get("finish_reason") == "length", unfinished)
