"""Memory of long runs: what agents and their tools say is kept within a number of bytes, however long a run is."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.data.prompts import dialogue
from gspo_lightning.data.prompts.id_cache import IdCache
from gspo_lightning.rollouts import AgentRollouts, RolloutSource
from gspo_lightning.rollouts.agents import codec
from tests.data.prompts.families import FAMILIES
from tests.rollouts.agents.test_agent_rollouts import DRAWS, Chat, Played

ANSWER = 4096
"""Characters of a tool's answer, each a token; no two answers are equal."""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
MIB = 1 << 20


class Calling(RolloutSource):
    """Calls a tool, whatever the context is."""

    def generate(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def extend(self, policy: Any, beginnings: Sequence[Any], **options: Any) -> list[Rollout]:
        ids = torch.tensor(policy.tokenizer(CALL, add_special_tokens=False)["input_ids"])
        logprobs, mask = torch.zeros(len(ids)), torch.ones(len(ids), dtype=torch.bool)
        return [Rollout(b.prompt, b.sample, ids, logprobs, mask, FinishReason.STOP, 0, text=CALL) for b in beginnings]


def kept_after(iterations: Sequence[int], rollouts: int) -> Iterator[tuple[int, AgentRollouts]]:
    """Yield the traced bytes after these iterations, with the source."""
    told = 0

    async def play(chat: Chat, record: Mapping[str, Any]) -> float:
        nonlocal told
        told += 1
        question = f"{told} is what? " + "?" * ANSWER
        said = await chat.ask(question, tools=[TOOL])
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": f"{told}".rjust(ANSWER, ".")}
        await chat.ask(question, said, result, tools=[TOOL])
        return 1.0

    tokenizer: Any = FAMILIES["qwen"].tokenizer()
    policy: Any = SimpleNamespace(tokenizer=tokenizer)
    with closing(AgentRollouts(Played(play), source=Calling())) as source:
        tracemalloc.start()
        try:
            for i in range(1, max(iterations) + 1):
                prompts = [Prompt(0, "look", (1,))]
                source.generate(
                    policy, prompts, group_size=rollouts, sampling=SamplingParams(4 * ANSWER), draws=DRAWS, version=i
                )
                source.measured()
                if i in iterations:
                    gc.collect()
                    yield tracemalloc.get_traced_memory()[0], source
        finally:
            tracemalloc.stop()


@pytest.mark.thorough
def test_many_iterations_with_ever_new_answers_need_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration brings 16 KB of answers and of questions, in tokens; without a bound each would stay for ever."""
    monkeypatch.setattr(dialogue, "KEPT_BYTES", MIB // 8)
    monkeypatch.setattr(codec, "KEPT_BYTES", MIB // 8)
    (early, _), (late, source) = kept_after([4, 16], rollouts=4)
    assert source._codec is not None
    coder = source._codec[1]
    for cache in (coder.dialogue._ids, coder._openings):
        assert MIB // 8 - 5 * ANSWER < cache.bytes <= MIB // 8
    assert late - early < MIB // 4  # twelve iterations brought 400,000 tokens, 1.5 MiB at four bytes


@pytest.mark.long
def test_memory_after_300_iterations_is_that_of_150(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,200 rollouts, each with an answer and a question of 4 kB that nobody said before; full at iteration 130."""
    monkeypatch.setattr(dialogue, "KEPT_BYTES", 2 * MIB)
    monkeypatch.setattr(codec, "KEPT_BYTES", 8 * MIB)
    found = []
    for traced, source in kept_after([150, 200, 250, 300], rollouts=4):
        assert source._codec is not None
        coder = source._codec[1]
        found.append(traced)
        for cache, limit in ((coder.dialogue._ids, 2 * MIB), (coder._openings, 8 * MIB)):
            assert limit - 6 * ANSWER < cache.bytes <= limit
    print("traced MiB after 150, 200, 250 and 300 iterations:", [round(traced / MIB, 2) for traced in found])
    assert max(found) - found[0] < MIB // 4


def test_a_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    computed: list[str] = []

    def ids(text: str) -> list[int]:
        computed.append(text)
        return [len(text)] * 100

    cache = IdCache(3 * 720)  # three entries of 320 + 100 * 4 bytes
    for text in ("a", "bb", "ccc", "a", "dddd", "a", "bb"):
        assert cache.get(text, lambda text=text: ids(text)) == [len(text)] * 100  # type: ignore[misc]
        assert cache.bytes <= cache.limit
    assert computed == ["a", "bb", "ccc", "dddd", "bb"]
    large = cache.get("x", lambda: [1] * 1000)
    assert len(large) == 1000
    assert cache.bytes == 3 * 720
