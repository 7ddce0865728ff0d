"""Codec of the gateway for a policy's tokenizer: messages as token ids, turns as content, reasoning and calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.thinking import context_opens_thought, decode_response
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import Message, SystemPrompt
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.data.prompts.id_cache import IdCache
from gspo_lightning.data.prompts.tool_calls import parse_turn
from gspo_lightning.rollouts.gateway.trace import canonical

KEPT_BYTES = 64 << 20
"""Bytes of the token ids of openings that are kept: all rollouts of a group begin alike."""


class PolicyCodec:
    """Codec with a tokenizer of its own, because the gateway's thread and the sampler's use it at the same time.

    Args:
        tokenizer: of the policy.
        system_prompt: put before a conversation without a system message.
        chat_template_kwargs: passed to the chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        system_prompt: SystemPrompt | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)
        self.dialogue = Dialogue(self.tokenizer, system_prompt, chat_template_kwargs)
        self._openings = IdCache(KEPT_BYTES)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, or a few more."""
        return max(map(len, self.tokenizer.get_vocab()))

    def opening(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return the token ids of the first request of a conversation; a raw prompt is not rendered."""
        if messages[0]["role"] == "prompt":
            ids: list[int] = self.tokenizer(str(messages[0]["content"]))["input_ids"]
            return ids
        return self._openings.get(
            canonical([messages, tools]), lambda: self.dialogue.opening(messages, {"tools": list(tools)})
        )

    def reply(
        self, messages: Sequence[Message], last: int, tools: Sequence[Message], calls: Sequence[Message]
    ) -> list[int]:
        """Return the token ids between two turns."""
        return self.dialogue.reply(messages, last, tools, calls)

    def parse(
        self, token_ids: Sequence[int], stop: Sequence[str], tools: Sequence[Message], context: Sequence[int] = ()
    ) -> Turn:
        """Return the parts of a turn, up to the first of the stop texts; ``context`` may have opened a thought."""
        plain = self.tokenizer.chat_template is None
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=plain)
        text = text[: min((text.find(end) for end in stop if end in text), default=len(text))]
        opened = context_opens_thought(self.tokenizer, context)
        return Turn(text) if plain else parse_turn(self.tokenizer, text, tools, opened=opened)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a turn without special tokens."""
        return decode_response(self.tokenizer, token_ids)
