"""Chat requests to a server, or completions if the model cannot chat."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer of a server."""

    text: str
    truncated: bool


class ChatRequests:
    """Client of the chat route; a model without a chat template completes the prompt as it is.

    Args:
        client: connection to the server.
        model: name under which the server serves it.
    """

    def __init__(self, client: Client, model: str) -> None:
        self.client, self.model = client, model
        self.chat = True
        """True while the model is believed to support chat."""

    async def ask(
        self, messages: Sequence[Mapping[str, str]], body: Mapping[str, Any]
    ) -> tuple[list[ChatAnswer], dict[str, Any]]:
        """Return the answers (one, unless ``body`` asks for more), and the server's token counts (``usage``).

        Raises:
            ServerError: the server does not answer, or its reply holds no answer.
            UnsupportedError: it refuses the request.
        """
        reply = await self._reply(messages, {"model": self.model, **body})
        try:
            spoken = [_answer(choice) for choice in reply["choices"]]
            counts = dict(reply.get("usage") or {})
            usage = {name: n for name, n in counts.items() if type(n) is int and 0 <= n < 1 << 53}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ServerError(f"it sent no answer: {str(reply)[:100]!r}") from error
        if not spoken:
            raise ServerError(f"it sent no answer: {str(reply)[:100]!r}")
        return spoken, usage

    async def _reply(self, messages: Sequence[Mapping[str, str]], body: dict[str, Any]) -> Any:
        if self.chat:
            try:
                return await self.client.chat({**body, "messages": list(messages)})
            except UnsupportedError as error:
                said = str(error).lower()
                if len(messages) > 1 or not ("template" in said or "status 404" in said):
                    raise
                if self.chat:
                    log.warning("%s cannot chat: prompts are completed as they are", self.model)
                self.chat = False
        if len(messages) > 1:
            raise UnsupportedError(f"{self.model} has no chat template: it takes one message, got {len(messages)}")
        return await self.client.complete({**body, "prompt": messages[0]["content"]})


def _answer(choice: Mapping[str, Any]) -> ChatAnswer:
    text = answer_text(choice["message"].get("content") if "message" in choice else choice["text"])
    if text is None:
        raise TypeError("its content is no text")
    return ChatAnswer(text, choice.get("finish_reason") == "length")
