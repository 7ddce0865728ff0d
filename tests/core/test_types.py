"""What the nouns of the loop refuse at construction, and that they survive a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import FinishReason, MicroBatch, MiniBatch, Prompt, Rollout, SamplingParams

PROMPT = Prompt(0, "1+1:", (4, 13, 4, 17))


def rollout(**changes: Any) -> Rollout:
    values: dict[str, Any] = {
        "prompt": PROMPT,
        "sample": 0,
        "token_ids": torch.tensor([5, 1]),
        "logprobs": torch.tensor([-1.0, -2.0]),
        "response_mask": torch.tensor([True, True]),
        "finish_reason": FinishReason.STOP,
        "policy_version": 0,
    }
    return Rollout(**(values | changes))


def micro_batch(rows: int = 2, **changes: Any) -> MicroBatch:
    values: dict[str, Any] = {
        "input_ids": torch.arange(rows * 5).view(rows, 5),
        "prompt_lengths": torch.tensor([2, 3][:rows]),
        "response_lengths": torch.tensor([3, 1][:rows]),
        "response_mask": torch.tensor([[True, True, True], [True, False, False]][:rows]),
        "advantages": torch.tensor([1.0, -1.0][:rows]),
        "old_logprobs": -torch.rand(rows, 3),
    }
    return MicroBatch(**(values | changes))


def test_a_prompt_needs_tokens() -> None:
    with pytest.raises(ValueError, match="prompt 7 has no tokens"):
        Prompt(7, "", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": torch.zeros(0, dtype=torch.int64)}, "one token or more"),
        ({"token_ids": torch.zeros(1, 2, dtype=torch.int64)}, "one token or more"),
        ({"response_mask": torch.tensor([1, 1])}, "must be bool"),
        ({"response_mask": torch.tensor([True])}, r"shape \(2,\), got \(1,\)"),
        ({"logprobs": torch.tensor([-1.0])}, r"logprobs must have shape \(2,\), got \(1,\)"),
    ],
)
def test_a_rollout_refuses_shapes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout(**changes)


def test_truncated_means_cut_at_the_limit() -> None:
    assert rollout(finish_reason=FinishReason.LENGTH).truncated
    assert not rollout().truncated


def test_a_new_rollout_is_missing_its_reward_rather_than_worth_zero() -> None:
    assert rollout().reward is None
    assert rollout(logprobs=None).logprobs is None


@pytest.mark.parametrize(
    ("params", "neutral"),
    [
        (SamplingParams(8), True),
        (SamplingParams(8, temperature=0.7), True),
        (SamplingParams(8, temperature=0.0), False),
        (SamplingParams(8, top_p=0.9), False),
        (SamplingParams(8, top_k=5), False),
    ],
)
def test_neutral_sampling_is_the_policys_own_distribution(params: SamplingParams, neutral: bool) -> None:
    assert params.neutral is neutral


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": torch.zeros(3, 5, dtype=torch.int64)}, "input_ids has 3 rows, response_mask 2"),
        ({"old_logprobs": torch.zeros(2, 4)}, r"old_logprobs must have shape \(2, 3\), got \(2, 4\)"),
        ({"behaviour_logprobs": torch.zeros(1, 3)}, r"behaviour_logprobs must have shape \(2, 3\)"),
    ],
)
def test_a_micro_batch_refuses_shapes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        micro_batch(**changes)


def test_tokens_and_rows_are_counted_without_padding_and_fillers() -> None:
    real, filled = micro_batch(), micro_batch(1, weight=0.0)
    assert real.num_tokens == 2 + 3 + 3 + 1
    assert real.lengths.tolist() == [5, 4]
    batch = MiniBatch([real, filled])
    assert (batch.num_rows, batch.num_tokens) == (2, 9)


def test_a_mini_batch_needs_a_micro_batch() -> None:
    with pytest.raises(ValueError, match="one micro-batch or more"):
        MiniBatch([])


def test_moving_to_a_device_moves_every_tensor_and_keeps_the_rest() -> None:
    moved = MiniBatch([micro_batch(weight=0.0)], index=3, iteration=4).to("meta")
    (part,) = moved.micro_batches
    assert (moved.index, moved.iteration, part.weight, part.behaviour_logprobs) == (3, 4, 0.0, None)
    tensors = [v for v in part.state_dict().values() if isinstance(v, torch.Tensor)]
    assert len(tensors) == 6
    assert all(t.device.type == "meta" for t in tensors)


def test_state_survives_a_weights_only_checkpoint(tmp_path: Path) -> None:
    batch = MiniBatch([micro_batch(), micro_batch(1, weight=0.0, old_logprobs=None)], index=2, iteration=5)
    torch.save(batch.state_dict(), tmp_path / "state.pt")
    again = MiniBatch.from_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (again.index, again.iteration) == (2, 5)
    for mine, theirs in zip(again.micro_batches, batch.micro_batches, strict=True):
        for name, value in theirs.state_dict().items():
            found = getattr(mine, name)
            if isinstance(value, torch.Tensor):
                assert found.dtype == value.dtype
                assert torch.equal(found, value)
            else:
                assert found == value


def test_the_verdict_is_that_of_the_named_reward_or_of_the_first_that_applies() -> None:
    parts = {"format": 0.5, "correct": 1.0}
    made = rollout(reward_parts=parts, reward_statuses={})
    assert (made.verdict("correct"), made.verdict("")) == (1.0, 0.5)
    made = rollout(reward_parts=parts, reward_statuses={"format": "not_applicable"})
    assert (made.verdict("format"), made.verdict("")) == (1.0, 1.0)
    assert rollout(reward_parts={}, reward_statuses={}).verdict("") is None


def test_the_transcript_of_an_agent_begins_with_the_policys_first_turn() -> None:
    """The client's own examples have the policy's role, and are none of its answers."""
    said = [("system", "add"), ("user", "1+1"), ("assistant", "2"), ("user", "3+4"), ("assistant", "8"), ("user", "no")]
    messages = tuple({"role": role, "content": content} for role, content in said)
    tree = (
        {"parent": None, "messages": list(messages[:4]), "tokens": 9},
        {"parent": 0, "messages": [messages[4]], "tokens": 2, "asked_s": 0.0, "answered_s": 0.1},
        {"parent": 1, "messages": [messages[5]], "tokens": 2},
    )
    assert rollout(messages=messages, tree=tree).transcript == "8\nuser: no"
    assert rollout(messages=messages[4:]).transcript == "8\nuser: no", "a conversation with an environment"
    assert rollout(messages=(), text="8").transcript == "8"
