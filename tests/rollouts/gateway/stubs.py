"""A tokenizer and a policy without weights: ids and log-probabilities are hashes of what they stand for."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.turn import ToolCall, Turn
from gspo_lightning.rollouts.gateway.bounds import load
from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import SampledTurn

Messages = Sequence[Mapping[str, Any]]


def number(value: object) -> int:
    """A number below a million that stands for a value."""
    return zlib.crc32(json.dumps(value, sort_keys=True, default=str).encode()) % 1_000_000


class Letters:
    """Encoder with a token per message, between a token that begins a turn of the policy and one that ends it."""

    BEGIN, END = 7_000_001, 7_000_002

    def __init__(self) -> None:
        self.openings = 0

    def opening(self, messages: Messages, tools: Messages) -> list[int]:
        self.openings += 1
        return [number([list(tools), *messages]), *(number(m) for m in messages), self.BEGIN]

    def reply(self, messages: Messages, last: int, tools: Messages, calls: Messages) -> list[int]:
        return [*([] if last == self.END else [self.END]), *(number(m) for m in messages), self.BEGIN]


def logprob(before: Sequence[int], token: int) -> float:
    """Log-probability of a token after all that precede it, as a policy would find it again in one forward."""
    return -1.0 - number([list(before), token]) / 1_000_000


def piece(context: Sequence[int], words: Sequence[int], *, version: int = 0) -> SampledTurn:
    """What a policy says after a context."""
    ids = (*words, Letters.END)
    found = [logprob((*context, *ids[:i]), token) for i, token in enumerate(ids)]
    return SampledTurn(ids, tuple(found), version=version)


class Bytes:
    """Codec whose tokens are the bytes of messages, each after its role; calls are written as tags."""

    BEGIN, END = 300, 301
    longest_token = 1

    def opening(self, messages: Messages, tools: Messages) -> list[int]:
        return [302, *(302 for _ in tools), *_bytes(messages), self.BEGIN]

    def reply(self, messages: Messages, last: int, tools: Messages, calls: Messages) -> list[int]:
        return [*([] if last == self.END else [self.END]), *_bytes(messages), self.BEGIN]

    def parse(
        self, token_ids: Sequence[int], stop: Sequence[str], tools: Messages, context: Sequence[int] = ()
    ) -> Turn:
        text = bytes(i for i in token_ids if i < 256).decode()
        text = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
        thought, found, text = text.rpartition("</think>")
        calls = [load(call) for call in re.findall("<tool_call>(.*?)</tool_call>", text)] if tools else []
        content = re.sub("<tool_call>.*?</tool_call>", "", text) if calls else text
        made = tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
        return Turn(content, thought.removeprefix("<think>") if found else None, made)


def _bytes(messages: Messages) -> list[int]:
    return [i for m in messages for i in (256 + len(m["role"]), *str(m.get("content") or "").encode())]


class Script:
    """Sampler that says what it was told to, one text after another, and remembers what it was asked."""

    def __init__(self, *texts: str, wait_s: float = 0.0) -> None:
        self.texts, self.wait_s = list(texts), wait_s
        self.asked: list[tuple[tuple[int, ...], int, tuple[str, ...], int]] = []
        self.failures = 0

    async def sample(
        self, session: Session, context: tuple[int, ...], budget: int, stop: tuple[str, ...], place: int
    ) -> SampledTurn:
        self.asked.append((context, budget, stop, place))
        await asyncio.sleep(self.wait_s)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of order")
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        whole = (*text.encode(), Bytes.END)
        ids = whole[:budget]
        found = [logprob((*context, *ids[:i]), token) for i, token in enumerate(ids)]
        return SampledTurn(ids, tuple(found), len(ids) < len(whole), version=5)
