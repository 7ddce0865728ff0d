"""Tokens of one conversation: the policy's turns and the environment's messages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.thinking import decode_response
from gspo_lightning.core.turn import Turn, assistant_message
from gspo_lightning.core.types import FinishReason, Message, Prompt, Rollout
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.rollouts.environments import Messages, Step
from gspo_lightning.rollouts.environments.conversation import Conversation
from gspo_lightning.rollouts.source import ResponsePrefix


@dataclass(slots=True)
class ConversationRow:
    """Sample ``sample`` of the conversations about a prompt; ``token_budget`` is what is left to both sides."""

    conversation: Conversation
    prompt: Prompt
    sample: int
    token_budget: int
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_ends: list[int] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    finish: FinishReason | None = None
    lost: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    texts: list[str] = field(default_factory=list)
    malformed_calls: int | None = None
    begun: int = 0
    """Place in ``tokens`` where the turn of the policy begins that has not ended."""

    @property
    def written(self) -> tuple[int, ...]:
        """Tokens of that turn so far."""
        return tuple(self.tokens[self.begun :])

    def open(self, prompt: Prompt) -> None:
        """Replace the data's prompt; its additional tokens are taken from the room."""
        self.token_budget -= max(0, len(prompt.token_ids) - len(self.prompt.token_ids))
        self.prompt = prompt

    def beginning(self) -> ResponsePrefix:
        """Return the start for the next turn. Random numbers count the policy's own tokens."""
        context = (*self.prompt.token_ids, *self.tokens)
        return ResponsePrefix(
            self.prompt, self.sample, context, drawn=sum(self.mask), token_budget=self.token_budget,
            written=self.written,
        )  # fmt: skip

    def grow(self, piece: Rollout) -> None:
        """Append tokens of the policy to its turn."""
        ids = piece.token_ids.tolist()
        self.versions += [piece.policy_version] * len(ids) if piece.versions is None else piece.versions.tolist()
        self._append(ids, chosen=True)
        if piece.logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += piece.logprobs.tolist()

    def say(self, last: Rollout, tokenizer: PreTrainedTokenizerBase, read: Turn | None = None) -> None:
        """End the turn of the policy. A truncated turn is unfinished and is not passed to the environment.

        Args:
            last: its last piece.
            tokenizer: of the policy.
            read: its parts, for an environment whose tools the chat template shows.
        """
        pieces = len(self.written) > len(last.token_ids)
        text = decode_response(tokenizer, self.written) if pieces else last.text
        self.turn_ends.append(len(self.tokens))
        self.begun = len(self.tokens)
        self.turn_rewards.append(0.0)
        self.texts.append(text)
        if read is None:
            self.messages.append({"role": "assistant", "content": text})
            self.conversation.said.append(text)
        else:
            made = sum(len(m.get("tool_calls", ())) for m in self.messages)
            numbered = (replace(c, id=c.id or f"call{i:05d}") for i, c in enumerate(read.calls, start=made))
            read = replace(read, calls=tuple(numbered))
            self.messages.append(assistant_message(read))
            self.conversation.said.append(read)
            self.malformed_calls = (self.malformed_calls or 0) + read.malformed
        if last.truncated:
            self.finish = FinishReason.LENGTH

    def hear(self, dialogue: Dialogue, max_turns: int) -> None:
        """Append the environment's answer to the newest turn; it is tokenized only if the policy has another turn."""
        step: Step = self.conversation.steps[-1]
        messages, self.turn_rewards[-1], done = step
        self.messages += messages
        if done or len(self.turn_ends) >= max_turns:
            self.finish = FinishReason.DONE if done else FinishReason.TURNS
            return
        self._go_on(messages, dialogue)

    def lose(self, why: str) -> None:
        """Mark the conversation as lost after a failure of its environment."""
        self.lost, self.finish = why, FinishReason.LOST

    def rollout(self, version: int) -> Rollout:
        """Return the whole conversation as a rollout; a lost one may have no token, but a row needs one."""
        tokens, mask = self.tokens or [self.prompt.token_ids[-1]], self.mask or [False]
        assert self.finish is not None
        versions = self.versions or [version]
        version = versions[-1]
        return Rollout(
            prompt=self.prompt,
            sample=self.sample,
            token_ids=torch.tensor(tokens, dtype=torch.int64),
            logprobs=None if self.logprobs is None else torch.tensor(self.logprobs or [0.0], dtype=torch.float32),
            response_mask=torch.tensor(mask, dtype=torch.bool),
            finish_reason=self.finish,
            policy_version=version,
            text="\n".join(self.texts),
            messages=tuple(self.messages),
            turn_ends=tuple(self.turn_ends),
            turn_rewards=tuple(self.turn_rewards),
            lost=self.lost,
            malformed_calls=self.malformed_calls,
            versions=torch.tensor(versions, dtype=torch.int64) if {*versions} != {version} else None,
        )

    def _go_on(self, messages: Messages, dialogue: Dialogue) -> None:
        spoken = next((m for m in reversed(self.messages) if m["role"] == "assistant"), {})
        ids = dialogue.reply(messages, self.tokens[-1], self.tools, spoken.get("tool_calls", ()))
        if len(ids) >= self.token_budget:
            self.finish = FinishReason.LENGTH
            return
        self._append(ids, chosen=False)
        self.begun = len(self.tokens)
        self.versions += self.versions[-1:] * len(ids)
        if self.logprobs is not None:
            self.logprobs += [0.0] * len(ids)

    def _append(self, ids: list[int], *, chosen: bool) -> None:
        self.tokens += ids
        self.mask += [chosen] * len(ids)
        self.token_budget -= len(ids)
