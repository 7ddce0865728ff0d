"""Tools that agents offer: calls that can be read, and those that cannot, in the format of the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import torch

from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.metrics.rollouts import measure_rollouts
from gspo_lightning.rollouts import AgentRollouts
from tests.data.prompts.families import FAMILIES
from tests.rollouts.agents.test_agent_rollouts import DRAWS, Chat, Played
from tests.rollouts.conversations.test_tool_calls import Scripted

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'


def talk(turns: list[str], **options: Any) -> Rollout:
    """A rollout of an agent that asks once for every turn of a policy with a script."""
    tokenizer = FAMILIES["qwen"].tokenizer()

    async def play(chat: Chat, record: Mapping[str, Any]) -> float:
        messages: list[Any] = ["2+3?"]
        for _ in turns:
            messages += [await chat.ask(*messages, **options), "go on"]
        return 1.0

    with closing(AgentRollouts(Played(play), source=Scripted(FAMILIES["qwen"], *turns))) as source:
        ((rollout,),) = source.generate(
            SimpleNamespace(tokenizer=tokenizer),  # type: ignore[arg-type]
            [Prompt(0, "2+3?", (1,))],
            group_size=1,
            sampling=SamplingParams(2000),
            draws=DRAWS,
        )
    return rollout


def test_calls_that_cannot_be_read_are_counted() -> None:
    broken = "<tool_call>oops</tool_call><|im_end|>"
    with_tools = talk([broken, CALL, broken + broken, "5<|im_end|>"], tools=[TOOL])
    without = talk([broken, "5<|im_end|>"])
    assert [bool(m.get("tool_calls")) for m in with_tools.messages[1::2]] == [False, True, False, False]
    assert (with_tools.malformed_calls, without.malformed_calls) == (1 + 2, None)
    tag, here = "response/malformed_calls", torch.device("cpu")
    right = talk([CALL], tools=[TOOL])
    assert measure_rollouts([with_tools, without, right], here)[tag] == 3 / 2
    assert tag not in measure_rollouts([without], here)
