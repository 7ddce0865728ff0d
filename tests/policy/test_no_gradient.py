"""Rows without an advantage are computed without a graph; gradients and measurements stay those of all rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.types import FinishReason, MicroBatch, Prompt, Rollout
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.loop.update.micro_batches import all_but_last_backward
from gspo_lightning.objectives import GRPO, GSPO, Objective
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch, select_rows, with_no_gradient
from gspo_lightning.policy.policy import Policy

PROMPTS = ((5, 6, 7), (5, 6, 8, 9), (5, 9))


def rollout(number: int, advantage: float, length: int, masked: bool = False) -> Rollout:
    prompt = Prompt(number // 2, "p", PROMPTS[number // 2])
    ids = torch.arange(3, 3 + length) + number
    old = torch.full((length,), -2.0)
    mask = torch.ones(length, dtype=torch.bool)
    return Rollout(
        prompt, number, ids, old, mask, FinishReason.STOP, 0, reward=advantage, advantage=advantage, masked=masked
    )


def rows(advantages: tuple[float, ...] = (0.0, 0.0, 1.0, -1.0, 0.5, 0.3)) -> MicroBatch:
    """Three groups of two rows; the last row takes no part."""
    lengths = (4, 9, 5, 3, 6, 2)
    count = len(advantages)
    return make_micro_batch(
        [rollout(n, a, lengths[n], masked=n == 5) for n, a in enumerate(advantages)], group_index=tuple(range(count))
    )


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Policy:
    made = load_policy(ModelSettings(dtype="float64")).train()
    made.packed = getattr(request, "param", True)
    return made


def gradient_of(
    policy: Policy, parts: list[MicroBatch], objective: Objective
) -> tuple[list[Tensor | None], dict[str, Any]]:
    """Clear the gradients, and return those of a mini-batch with its measurements."""
    policy.zero_grad()
    sums = MetricSums("full")
    all_but_last_backward(parts, LossTerms(policy, CachedLogProbs(), objective, 1.0), sums, on_policy=True).backward()
    pairs, vectors, maxima = sums.reduce()
    return [p.grad for p in policy.parameters() if p.requires_grad], {**pairs, **vectors, **maxima}


@pytest.mark.parametrize("policy", [True, False], indirect=True, ids=["packed", "padded"])
def test_gradient_and_metrics_are_those_of_all_rows(policy: Policy) -> None:
    part = rows()
    marked = with_no_gradient(part)
    assert marked.no_gradient == (True, True, False, False, False, True)
    every, measured = gradient_of(policy, [part], GSPO())
    some, measured_too = gradient_of(policy, [marked], GSPO())
    for one, other in zip(every, some, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
    assert measured.keys() == measured_too.keys()
    for name, value in measured.items():
        torch.testing.assert_close(measured_too[name], value, rtol=1e-6, atol=1e-9, msg=name)


def test_only_other_rows_keep_activations(policy: Policy) -> None:
    def saved(part: MicroBatch) -> int:
        sizes: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            policy(part)
        return sum(sizes)

    part = rows((0.0, 0.0, 0.0, 0.0, 1.0))
    weights = saved(with_no_gradient(dataclasses.replace(part, advantages=torch.zeros(5))))
    assert weights == 0
    alone = saved(select_rows(part, [4]))
    assert alone <= saved(with_no_gradient(part)) < 1.2 * alone < saved(part)


def test_marked_rows_that_have_a_gradient_after_all_are_computed_again(policy: Policy) -> None:
    """As with an objective of a plug-in whose trial showed nothing."""
    part = dataclasses.replace(rows(), ref_logprobs=torch.full((6, 9), -3.0))
    objective = GRPO(kl_coef=0.5, entropy_coef=0.1)
    every, _ = gradient_of(policy, [part], objective)
    some, _ = gradient_of(policy, [with_no_gradient(part)], objective)
    for one, other in zip(every, some, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
    without, _ = gradient_of(policy, [with_no_gradient(part)], GRPO())
    assert any(not torch.equal(a, b) for a, b in zip(some, without, strict=True) if a is not None and b is not None)


def test_every_weight_gets_a_gradient_if_no_row_has_one(policy: Policy) -> None:
    """Momentum moves the weights then: a gradient of 0 is not a missing one."""
    part = with_no_gradient(rows((0.0, 0.0, 0.0)))
    assert part.no_gradient == (True, True, True)
    gradients, _ = gradient_of(policy, [part, part], GSPO())
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_old_logprobs_have_the_layout_of_training(policy: Policy) -> None:
    """Ratios of an unchanged policy are exactly 1, in float32, too."""
    single = load_policy(ModelSettings()).train()
    single.packed = True
    part = with_no_gradient(rows())
    with torch.no_grad():
        old = single(part)[0]
    assert torch.equal(single(part)[0], old)


def test_nothing_is_marked_where_a_second_pass_costs_more() -> None:
    short = rows((0.0, 1.0))  # of one prompt of 3 tokens, and 4 own tokens
    assert with_no_gradient(short).no_gradient == (True, False)
    assert with_no_gradient(dataclasses.replace(short, prompt_lengths=torch.tensor([8, 8]))).no_gradient is None
    assert with_no_gradient(rows((1.0, 1.0))).no_gradient is None
    system = dataclasses.replace(rows((0.0, 0.0, 1.0)), common_prefix=2)
    assert with_no_gradient(system).no_gradient == (True, True, False)


def test_advantages_of_tokens_count_where_tokens_are_trained() -> None:
    part = rows((0.0, 0.0, 0.0))
    per_token = torch.zeros(3, 9)
    per_token[1, 2] = 0.1
    per_token[0, 8] = 0.1  # beyond the row's four tokens
    marked = with_no_gradient(dataclasses.replace(part, advantages=per_token))
    assert marked.no_gradient == (True, False, True)
