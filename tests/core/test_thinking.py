"""Ends of thoughts: by tokens for every shape of a rollout, and what each reward pays for a text inside one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.rows import RowSpan
from gspo_lightning.core.thinking import (
    MARKS,
    after_thinking,
    context_opens_thought,
    decode_response,
    unfinished_thought,
)
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.data.prompts.tool_calls import parse_turn
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards import (
    CodeExecutor,
    ExactMatch,
    FunctionReward,
    IFVerifier,
    LogicPuzzle,
    MathVerifier,
    Reward,
    RewardRunner,
    Sample,
)
from gspo_lightning.rollouts.agents.codec import PolicyCodec
from gspo_lightning.training.suites.votes import ballot


@pytest.fixture(params=[False, True], ids=["text", "special"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    found = character_tokenizer()
    found.add_tokens([AddedToken(m, special=request.param, normalized=False) for m in ("<think>", "</think>")])
    found.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return found


def response(tokenizer: PreTrainedTokenizerFast, prompt: str, *parts: tuple[str, bool]) -> Rollout:
    """A response to a prompt; each part is the policy's or an environment's."""
    ids = [(i, own) for text, own in parts for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
    return Rollout(
        prompt=Prompt(0, prompt, tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"])),
        sample=0,
        token_ids=torch.tensor([i for i, _ in ids]),
        logprobs=None,
        response_mask=torch.tensor([own for _, own in ids]),
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
    )


@pytest.mark.parametrize(
    ("prompt", "parts", "unfinished"),
    [
        ("1+1:<think>", [("2", True)], True),
        ("1+1:<think>", [("2</think>2", True)], False),
        ("1+1:<think>", [("2</think>2<think>3", True)], True),
        ("1+1:", [("<think>2", True)], True),
        ("1+1:", [("2", True)], False),
        ("1+1:<think></think>", [("2", True)], False),
        ("<think>?1+1:", [("2", True)], False),  # a prompt that speaks of the mark
        ("1+1:<think>", [("2</think>2", True), ("3:<think>", False), ("4", True)], True),
        ("1+1:<think>", [("2</think>2", True), ("3:<think>", False), ("4</think>4", True)], False),
        ("1+1:<think>", [("2</think>2", True), ("3:", False), ("4", True)], False),
        ("1+1:<think>", [("2", True), ("3:<think>", False), ("4</think>4", True), ("5", False)], False),
        ("1+1:<think>", [("3", False)], False),  # the policy said nothing
    ],
)
def test_the_newest_turn_decides_whether_a_thought_has_ended(
    tokenizer: PreTrainedTokenizerFast, prompt: str, parts: list[tuple[str, bool]], unfinished: bool
) -> None:
    rollout = response(tokenizer, prompt, *parts)
    assert unfinished_thought(tokenizer, rollout) == unfinished
    row = replace(rollout, rows=(RowSpan(rollout.prompt.token_ids, 0, len(rollout.token_ids)),))
    assert unfinished_thought(tokenizer, replace(row, prompt=Prompt(0, "7", (7,)))) == unfinished  # an agent's row


def test_decoding_keeps_the_marks_of_thoughts_and_drops_other_special_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    ids = [*tokenizer("<think>1</think>2", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert decode_response(tokenizer, ids) == "<think>1</think>2"


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_every_family_s_marks_begin_and_end_a_thought(opening: str, closing: str, special: bool) -> None:
    found = character_tokenizer()
    found.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in (opening, closing)])
    for prompt, said, rest in (
        ("1+1:", f"{opening}2", None),
        ("1+1:", f"{opening}3{closing}2", "2"),
        (f"1+1:{opening}", "2", None),
        (f"1+1:{opening}", f"3{closing}2", "2"),
        (f"1+1:{opening}{closing}", "2", "2"),
        ("1+1:", f"{opening}3{closing}2{opening}2", None),
    ):
        rollout = response(found, prompt, (said, True))
        unfinished = unfinished_thought(found, rollout)
        text = decode_response(found, rollout.token_ids.tolist())
        assert (text, unfinished) == (said, rest is None)
        assert after_thinking(text, unfinished) == rest
    found.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert parse_turn(found, f"{opening}2") == Turn("", "2")
    assert parse_turn(found, f"{opening}3{closing}2") == Turn("2", "3")
    assert parse_turn(found, f"3{closing}2", opened=True) == Turn("2", "3")


@pytest.mark.parametrize(
    ("said", "text", "rest"),
    [
        ("<|channel|>analysis<|message|>2", "<think>2", None),
        ("<|channel|>analysis<|message|>3<|end|>", "<think>3", None),  # ended its thought, and stopped
        ("<|channel|>analysis<|message|>3<|end|><|start|>assistant<|channel|>final<|message|>2<|return|>",
         "<think>3</think>2", "2"),
        ("<|channel|>analysis<|message|>3<|end|><|start|>assistant<|channel|>analysis<|message|>2",
         "<think>3<think>2", None),
        ("<|channel|>final<|message|>2<|return|>", "</think>2", "2"),
        ("2", "2", "2"),
    ],
)  # fmt: skip
def test_the_channels_of_gpt_oss_are_a_thought_and_an_answer(said: str, text: str, rest: str | None) -> None:
    found = character_tokenizer()
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
    found.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    found.add_tokens([AddedToken(word, normalized=False) for word in ("assistant", "analysis", "final")])
    rollout = response(found, "1+1:<|start|>assistant", (said, True))
    assert decode_response(found, rollout.token_ids.tolist()) == text
    assert unfinished_thought(found, rollout) == (rest is None)
    assert after_thinking(text) == rest


def test_an_agent_gets_an_unfinished_thought_as_reasoning_and_no_content(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = PolicyCodec(tokenizer)
    context, said = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("1+1:<think>", "2"))
    assert context_opens_thought(tokenizer, context)
    assert codec.parse(said, (), (), context) == Turn("", "2")
    assert codec.parse(said, (), ()) == Turn("2")
    assert parse_turn(tokenizer, "2</think>3", opened=True) == Turn("3", "2")


def fraction_of(unfinished_thought: list[bool], completions: list[str]) -> list[float]:
    return [
        0.0 if thinking else float(text == "4") for thinking, text in zip(unfinished_thought, completions, strict=True)
    ]


REWARDS: list[tuple[Reward, str, dict[str, object]]] = [
    (MathVerifier(), r"\boxed{4}", {"answer": "4"}),
    (MathVerifier(), "The answer is 4.", {"answer": "4"}),
    (ExactMatch(), "#4", {"answer": "4"}),
    (ExactMatch(marker=""), "4", {"answer": "4"}),
    (LogicPuzzle("countdown"), "<answer>3*5+7</answer>", {"answer": "3 5 7 = 22"}),
    (IFVerifier(), "four", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
    (FunctionReward(fraction_of), "4", {}),
]


@pytest.mark.thorough("FunctionReward--", "MathVerifier--0", "MathVerifier--1")
@pytest.mark.parametrize(
    ("reward", "text", "columns"), REWARDS, ids=lambda v: type(v).__name__ if isinstance(v, Reward) else ""
)
def test_a_right_answer_is_paid_but_not_inside_a_thought(reward: Reward, text: str, columns: dict[str, object]) -> None:
    done = Sample("0", "2+2?", text, columns=columns)
    with RewardRunner({"it": reward}, num_workers=1) as runner:
        paid, unpaid = runner.score([done, replace(done, unfinished_thought=True)])
    assert (paid.reward, unpaid.reward) == (1.0, 0.0)


def test_a_program_inside_a_thought_is_not_run_and_a_ballot_there_not_cast() -> None:
    answer = {"type": "stdin", "tests": [{"input": "", "output": "4"}]}
    score = CodeExecutor().score("```python\nprint(4)\n```", answer, unfinished_thought=True)
    assert (score.reward, score.detail) == (0.0, "no_program: the thinking has no end")
    assert ballot(r"\boxed{4}") is not None
    assert ballot(r"\boxed{4}", unfinished_thought=True) is None
