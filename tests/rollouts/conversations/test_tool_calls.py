"""Tools that the chat template shows: calls are read, and results are written, in the format of the family."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.rollouts import Draws, EnvironmentRollouts, RolloutSource
from gspo_lightning.rollouts.environments import Calculator, Tool, ToolUse
from tests.data.prompts.families import FAMILIES, Family
from tests.data.prompts.test_tool_calls import LFM

SEEN: list[tuple[int, float]] = []


class Power(Tool):
    """A tool with two arguments."""

    def call(self, base: int, exponent: float = 2.0) -> str:
        """Raises a number to a power.

        Args:
            base: the number.
            exponent: the power.
        """
        SEEN.append((base, exponent))
        return str(base**exponent)


class Scripted(RolloutSource):
    """A policy that says what it is told to."""

    def __init__(self, family: Family, *turns: str) -> None:
        self.family, self.turns, self.read = family, list(turns), []  # type: ignore[var-annotated]

    def generate(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def extend(self, policy: Any, beginnings: Sequence[Any], **options: Any) -> list[Rollout]:
        (start,) = beginnings
        tokenizer = policy.tokenizer
        self.read.append(tokenizer.decode(list(start.context)))
        text = self.turns.pop(0)
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        said = tokenizer.decode(ids, skip_special_tokens=True)
        whole = torch.ones(len(ids), dtype=torch.bool)
        return [Rollout(start.prompt, start.sample, ids, torch.zeros(len(ids)), whole, FinishReason.STOP, 0, text=said)]


def talk(
    family: str, environment: ToolUse, *turns: str, prompt: dict[str, Any] | None = None
) -> tuple[Rollout, list[str]]:
    """Return the rollout, and what the policy read before each turn."""
    tokenizer = FAMILIES[family].tokenizer()
    ids = tokenizer("unused")["input_ids"]
    source = Scripted(FAMILIES[family], *turns)
    rollouts = EnvironmentRollouts(environment, source)
    asked = Prompt(0, "2^3?", tuple(ids), **(prompt or {}))
    with closing(rollouts):
        ((found,),) = rollouts.generate(
            SimpleNamespace(tokenizer=tokenizer),  # type: ignore[arg-type]
            [asked],
            group_size=1,
            sampling=SamplingParams(2000),
            draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0),
        )
    return found, source.read


CALLED = {
    "qwen": '<tool_call>\n{"name": "power", "arguments": {"base": 2, "exponent": 3}}\n</tool_call><|im_end|>',
    "llama": '{"name": "power", "parameters": {"base": 2, "exponent": 3}}<|eot_id|>',
    "mistral": '[TOOL_CALLS] [{"name": "power", "arguments": {"base": 2, "exponent": 3}}]</s>',
    "gpt-oss": ' to=functions.power<|channel|>commentary json<|message|>{"base": 2, "exponent": 3}<|call|>',
}


@pytest.mark.parametrize("family", list(CALLED))
def test_a_call_in_the_format_of_the_family_is_answered_in_it(family: str) -> None:
    SEEN.clear()
    rollout, (first, second) = talk(family, ToolUse({"power": Power()}), CALLED[family], "It is 8.")
    assert SEEN == [(2, 3.0)]
    assert "Raises a number to a power." in first  # shown by the template, which got the prompt, too
    assert "2^3?" in first
    assert "unused" not in first
    assert second.startswith(first + CALLED[family])
    assert "8.0" in second[len(first + CALLED[family]) :]
    assert [m["role"] for m in rollout.messages] == ["assistant", "tool", "assistant"]
    assert rollout.messages[1]["tool_call_id"] == rollout.messages[0]["tool_calls"][0]["id"]
    spoken = [i for i, own in zip(rollout.token_ids.tolist(), rollout.response_mask.tolist(), strict=True) if own]
    tokenizer = FAMILIES[family].tokenizer()
    assert tokenizer.decode(spoken) == CALLED[family] + "It is 8."


def test_a_template_without_tools_gets_a_system_message_and_tags() -> None:
    """As before tools could be shown by templates."""
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    FAMILIES["plain"] = Family(plain, "<|im_end|>")
    try:
        turns = ('<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>', "6")
        _, (first, second) = talk("plain", ToolUse({"calculator": Calculator()}), *turns)
        assert first.startswith("[system]You may call these tools:\n- calculator(expression): Computes")
        assert second.endswith("[tool]6[assistant]")
        with pytest.raises(UserError, match="shows no tools"):
            talk("plain", ToolUse({"calculator": Calculator()}, style="template"))
    finally:
        del FAMILIES["plain"]


def test_a_template_whose_calls_are_not_read_gets_tags_too(caplog: pytest.LogCaptureFixture) -> None:
    """LFM2.5's calls are Python: shown by the template, the tools would be called and never answer."""
    FAMILIES["lfm"] = Family(LFM, "<|im_end|>")
    try:
        turns = ('<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>', "6")
        _, (first, second) = talk("lfm", ToolUse({"calculator": Calculator()}), *turns)
        assert "You may call these tools:\n- calculator(expression): Computes" in first
        assert '"type": "function"' not in first
        assert "6" in second[len(first + turns[0]) :]
        assert "shows tools, but calls in its format are not read back" in caplog.text
        with pytest.raises(UserError, match="has a format of calls that is not read"):
            talk("lfm", ToolUse({"calculator": Calculator()}, style="template"))
    finally:
        del FAMILIES["lfm"]


def test_tags_may_be_chosen_where_the_template_knows_tools() -> None:
    _, (first,) = talk("qwen", ToolUse({"calculator": Calculator()}, style="tags"), "6")
    assert "<tools>" not in first
    assert "You may call these tools" in first


def test_instructions_join_the_system_message_of_a_record_and_its_tools_come_first() -> None:
    shown = {"type": "function", "function": {"name": "calculator", "description": "Of the record."}}
    said = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2*3?"})
    prompt = {"messages": said, "columns": {"tools": [shown]}}
    _, (first,) = talk("qwen", ToolUse({"calculator": Calculator()}, instructions="Use tools."), "6", prompt=prompt)
    assert "Use tools.\n\nBe brief." in first
    assert "Of the record." in first
    assert "Computes an expression" not in first


def test_a_call_that_cannot_be_read_and_wrong_arguments_are_answered() -> None:
    SEEN.clear()
    turns = (
        "<tool_call>oops</tool_call><|im_end|>",
        '<tool_call>{"name": "power", "arguments": {"base": "two", "c": 1}}</tool_call><|im_end|>',
        '<tool_call>{"name": "root", "arguments": {}}</tool_call><|im_end|>',
        "I give up.",
    )
    rollout, _ = talk("qwen", ToolUse({"power": Power()}), *turns)
    first, second, third = (m["content"] for m in rollout.messages if m["role"] == "tool")
    assert first == "error: a call that cannot be read"
    assert "base: Input should be a valid integer" in second
    assert "c: Extra inputs are not permitted" in second
    assert third == "error: not a call of power"
    assert SEEN == []
    assert rollout.malformed_calls == 1
