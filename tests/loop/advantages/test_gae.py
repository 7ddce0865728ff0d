"""Advantages per token: values by hand, and the limits in which they are those of simpler estimators."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.advantages import GAE, LeaveOneOut, Raw
from gspo_lightning.loop.advantages.gae import length_adaptive_lambda, token_advantages
from gspo_lightning.loop.advantages.per_token import assign_token_advantages, token_rewards, whitened
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.objectives import GRPO, REINFORCE, GSPOToken

CPU = torch.device("cpu")
PLAIN = {"whiten": False}


def row(
    reward: float | None,
    mask: Sequence[int],
    values: Sequence[float] | None = None,
    finish: FinishReason = FinishReason.STOP,
) -> Rollout:
    own = torch.tensor(mask, dtype=torch.bool)
    rollout = Rollout(Prompt(0, "", (5,)), 0, torch.arange(len(mask)) + 3, None, own, finish, 0, reward=reward)
    rollout.values = torch.zeros(len(mask)) if values is None else torch.tensor(values)
    return rollout


def of(
    gae: GAE, rewards: list[float], values: list[float], mask: list[int], cut: bool = False
) -> tuple[Tensor, Tensor]:
    r, v, m = torch.tensor([rewards]), torch.tensor([values]), torch.tensor([mask], dtype=torch.bool)
    found = gae.estimate(r, v, m, torch.tensor([cut]))
    return found.advantages[0], found.returns[0]


def test_three_tokens_by_hand() -> None:
    """V = (.5, .25, .75), r = (0, 0, 1), gamma .5, lambda .8.

    delta_2 = 1 - .75 = .25; delta_1 = .375 - .25 = .125; delta_0 = .125 - .5 = -.375.
    A_2 = .25; A_1 = .125 + .4 * .25 = .225; A_0 = -.375 + .4 * .225 = -.285.
    Returns with lambda 1: .5^2 = .25, .5, 1.
    """
    advantages, returns = of(GAE(gamma=0.5, lam=0.8), [0.0, 0.0, 1.0], [0.5, 0.25, 0.75], [1, 1, 1])
    assert advantages.tolist() == pytest.approx([-0.285, 0.225, 0.25], abs=1e-12)
    assert returns.tolist() == pytest.approx([0.25, 0.5, 1.0], abs=1e-12)


def test_the_critic_has_a_lambda_of_its_own() -> None:
    """lambda 0 looks one token ahead: returns r + V' = (.25, .75, 1), whatever the policy's lambda is."""
    gae = GAE(lam=1.0, lam_value=0.0)
    advantages, returns = of(gae, [0.0, 0.0, 1.0], [0.5, 0.25, 0.75], [1, 1, 1])
    assert advantages.tolist() == pytest.approx([0.5, 0.75, 0.25], abs=1e-12)  # 1 - V
    assert returns.tolist() == pytest.approx([0.25, 0.75, 1.0], abs=1e-12)


def test_tokens_that_the_policy_did_not_choose_are_no_steps() -> None:
    """A tool's answer in the middle changes nothing; what stands there, values included, is never read."""
    gae = GAE(gamma=0.9, lam=0.7, lam_value=0.6)
    advantages, returns = of(gae, [0.2, 0.0, 1.0], [0.5, 0.25, 0.75], [1, 1, 1])
    between, targets = of(
        gae, [0.2, 9.0, float("nan"), 0.0, 1.0, 7.0], [0.5, 9.0, float("nan"), 0.25, 0.75, 9.0], [1, 0, 0, 1, 1, 0]
    )
    assert between[[0, 3, 4]].tolist() == advantages.tolist()
    assert targets[[0, 3, 4]].tolist() == returns.tolist()
    assert between[[1, 2, 5]].tolist() == targets[[1, 2, 5]].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("bootstrap", "expected"), [(False, [0.5, -0.75]), (True, [1.25, 0.0])])
def test_a_truncated_response_ends_or_goes_on(bootstrap: bool, expected: list[float]) -> None:
    """V = (-.5, .75), no reward: nothing follows, or what follows is worth the last known value, .75."""
    gae = GAE(lam=1.0, bootstrap_truncated=bootstrap)
    assert of(gae, [0.0, 0.0], [-0.5, 0.75], [1, 1], cut=True)[0].tolist() == expected
    assert of(gae, [0.0, 0.0], [-0.5, 0.75], [1, 1])[0].tolist() == [0.5, -0.75]  # it has ended by itself


def test_length_adaptive_lambda_of_four_lengths(caplog: pytest.LogCaptureFixture) -> None:
    assert length_adaptive_lambda(torch.tensor([3, 20, 21, 100]), 0.05).tolist() == pytest.approx(
        [0.0, 0.0, 1 - 1 / 1.05, 0.8], abs=1e-12
    )
    values, rewards = torch.full((2, 40), 0.5), torch.zeros(2, 40)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 3:] = False
    rewards[0, 39] = rewards[1, 2] = 1.0
    found = GAE(alpha=0.05).estimate(rewards, values, mask, torch.zeros(2, dtype=torch.bool))
    assert found.floored.tolist() == [False, True]
    assert found.advantages[0, 38].item() == pytest.approx(0.25)  # lambda .5 of .5
    assert found.advantages[1, :3].tolist() == [0.0, 0.0, 0.5]
    assert found.returns[1, :3].tolist() == [1.0, 1.0, 1.0]  # the critic's lambda is 1

    gae = GAE(alpha=0.05)
    half = [[row(1.0, [1] * 30), row(0.0, [1] * 3)]]
    with caplog.at_level(logging.WARNING):
        assign_token_advantages(half, gae, Shaping(), CPU)
        assert not caplog.records
        for _ in range(2):
            assign_token_advantages([[*half[0], row(0.0, [1] * 20)]], gae, Shaping(), CPU)
    (said,) = caplog.messages  # once a run
    assert "0 for 2 of 3 responses" in said
    assert "1 / alpha = 20 tokens" in said


def test_token_rewards_with_penalties_and_turns_by_hand() -> None:
    rollout = row(3.0, [1, 1, 0, 1, 1, 0])
    assert token_rewards(rollout, Shaping()).tolist() == [0, 0, 0, 0, 3, 0]
    rollout.token_penalties = torch.tensor([0.5, 0.25, 9.0, 0.0, 0.25, 9.0])
    assert token_rewards(rollout, Shaping()).tolist() == [-0.5, -0.25, 0, 0, 2.75, 0]
    rollout.token_penalties = None
    rollout.turn_ends, rollout.turn_rewards = (2, 5), (2.0, 0.5)
    by_turn = Shaping(turn_reward="game", weights={"game": 0.5})
    assert token_rewards(rollout, by_turn).tolist() == [0, 1.0, 0, 0, 2.0, 0]  # 3 - 1 - .25 at the end, and .25 there
    cut = row(3.0, [1, 1], finish=FinishReason.LENGTH)
    assert token_rewards(cut, Shaping(truncated="penalise", truncation_penalty=0.5)).tolist() == [0, 2.5]
    assert token_rewards(row(None, [1, 1]), Shaping()).tolist() == [0, 0]


def test_step_rewards_are_paid_at_the_last_token_of_their_step() -> None:
    """A half of 1 and of 0 at the ends of two steps, and what else the response earned at its last token."""
    rollout = row(0.5, [1, 1, 1, 1])
    rollout.steps, rollout.reward_parts = {"steps": ((2, 1.0), (4, 0.0))}, {"steps": 0.5}
    assert token_rewards(rollout, Shaping()).tolist() == [0, 0.5, 0, 0]
    rollout.reward, rollout.reward_parts["correct"] = 2.0 * 0.5 + 0.25 * 1.0, 1.0
    weights = {"steps": 2.0, "correct": 0.25}
    assert token_rewards(rollout, Shaping(weights=weights)).tolist() == [0, 1.0, 0, 0.25]
    rollout.reward, rollout.reward_parts["correct"] = 2.25 * 0.5, None  # the others have its weight
    rollout.reward_statuses = {"steps": "ok", "correct": "not_applicable"}
    assert token_rewards(rollout, Shaping(weights=weights)).tolist() == [0, 1.125, 0, 0]
    rollout.reward, rollout.reward_parts, rollout.reward_statuses = 3.0, {"steps": 3.0}, {}
    assert token_rewards(rollout, Shaping()).tolist() == [0, 0.5, 0, 2.5]  # a total that is not the mean is still paid
    between = row(0.5, [1, 0, 1, 1, 0])
    between.steps = {"steps": ((2, 1.0), (4, 0.0))}  # paid to a token that the policy chose
    assert token_rewards(between, Shaping()).tolist() == [0.5, 0, 0, 0, 0]


def test_steps_by_hand() -> None:
    """V = (.5, .25, .75, .5), gamma 1, lambda .5; scores 1 and 0 of two steps of two tokens earn r = (0, .5, 0, 0).

    delta_3 = -.5; delta_2 = .5 - .75 = -.25; delta_1 = .5 + .75 - .25 = 1; delta_0 = .25 - .5 = -.25.
    A_3 = -.5; A_2 = -.25 - .25 = -.5; A_1 = 1 - .25 = .75; A_0 = -.25 + .375 = .125. Returns: .5, .5, 0, 0.
    The same .5 at the end: A_3 = 0; A_2 = -.25; A_1 = .5 - .125 = .375; A_0 = -.25 + .1875 = -.0625.
    """
    stepwise, plain = (row(0.5, [1, 1, 1, 1], [0.5, 0.25, 0.75, 0.5]) for _ in range(2))
    stepwise.steps = {"steps": ((2, 1.0), (4, 0.0))}
    assign_token_advantages([[stepwise], [plain]], GAE(lam=0.5, whiten=False), Shaping(), CPU)
    assert stepwise.token_advantages is not None
    assert stepwise.returns is not None
    assert plain.token_advantages is not None
    assert stepwise.token_advantages.tolist() == [0.125, 0.75, -0.5, -0.5]
    assert stepwise.returns.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert plain.token_advantages.tolist() == [-0.0625, 0.375, -0.25, 0.0]


def test_rows_that_take_no_part_change_nothing() -> None:
    def judged(*more: Rollout) -> list[list[float]]:
        rows = [row(1.0, [1, 1], [0.5, 0.25]), row(0.0, [1, 0, 1], [0.1, 0.0, 0.3]), *more]
        metrics = assign_token_advantages([rows], GAE(), Shaping(), CPU)
        return [
            *(r.token_advantages.tolist() for r in rows[:2] if r.token_advantages is not None),
            list(metrics.values()),
        ]

    masked = row(5.0, [1, 1, 1, 1], [9.0] * 4)
    masked.masked = True
    assert judged() == judged(row(None, [1] * 5, [7.0] * 5), masked)
    assert masked.token_advantages is not None
    assert masked.token_advantages.tolist() == [0] * 4


@pytest.mark.parametrize("whiten", [True, False])
def test_a_critic_that_is_right_leaves_nothing_to_learn(whiten: bool) -> None:
    """Its values are float32, so the reward .3 less the value .3 is 1.2e-8, and whitening would make that 1."""
    rollouts = [row(reward, [1, 1], [0.3, 0.3]) for reward in (0.3, 0.1 + 0.2, 0.3 + 1e-8)]
    assign_token_advantages([rollouts], GAE(whiten=whiten), Shaping(), CPU)
    assert [found(r) for r in rollouts] == [[0.0, 0.0]] * 3
    rollouts.append(row(0.301, [1, 1], [0.3, 0.3]))
    assign_token_advantages([rollouts], GAE(whiten=whiten), Shaping(), CPU)
    assert found(rollouts[3])[1] > (1.0 if whiten else 9e-4)


@pytest.mark.parametrize("whiten", [True, False])
def test_equal_advantages_are_whitened_to_0_and_else_stay(whiten: bool) -> None:
    rollouts = [row(reward, [1]) for reward in (0.3, 0.1 + 0.2)]
    assign_token_advantages([rollouts], GAE(whiten=whiten), Shaping(), CPU)
    assert [found(r) for r in rollouts] == [[0.0 if whiten else pytest.approx(0.3)]] * 2


def found(rollout: Rollout) -> list[float]:
    assert rollout.token_advantages is not None
    values: list[float] = rollout.token_advantages.tolist()
    return values


def test_whitening_by_hand() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    found = whitened(torch.tensor([[1.0, 2.0], [6.0, 99.0]]).double(), mask, CPU)
    std = ((4 + 1 + 9) / 2) ** 0.5
    assert found.flatten().tolist() == pytest.approx([-2 / std, -1 / std, 3 / std, 0])
    assert whitened(torch.zeros(1, 1).double(), torch.zeros(1, 1, dtype=torch.bool), CPU).tolist() == [[0]]


def gradient(objective: GRPO | REINFORCE | GSPOToken, advantages: Tensor, mask: Tensor) -> Tensor:
    logprobs = torch.linspace(-2, -0.1, mask.numel(), dtype=torch.float64).reshape(mask.shape).requires_grad_()
    old = logprobs.detach() + 1e-4 * torch.arange(mask.numel()).reshape(mask.shape)
    objective(logprobs, old, advantages, mask).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
REWARDS = torch.tensor([1.0, 0.0, 3.0, -1.0], dtype=torch.float64)


def at_end(rewards: Tensor) -> Tensor:
    last = torch.where(MASK, torch.arange(4), 0).amax(-1)
    return torch.zeros(4, 4, dtype=torch.float64).scatter(1, last.unsqueeze(1), rewards.unsqueeze(1))


@pytest.mark.parametrize("objective", [REINFORCE(), GRPO(), GSPOToken()], ids=repr)
def test_without_a_critic_it_is_reinforce(objective: GRPO | REINFORCE | GSPOToken) -> None:
    """gamma = lambda = 1, V = 0: the gradient is that of the raw reward."""
    found = GAE(lam=1.0).estimate(at_end(REWARDS), torch.zeros(4, 4), MASK, torch.zeros(4, dtype=torch.bool))
    raw = Raw()(REWARDS, torch.arange(4))
    assert torch.equal(gradient(objective, found.advantages, MASK), gradient(objective, raw, MASK))


@pytest.mark.parametrize("objective", [REINFORCE(), GRPO(), GSPOToken()], ids=repr)
def test_with_the_others_mean_as_value_it_is_rloo(objective: GRPO | REINFORCE | GSPOToken) -> None:
    """gamma = lambda = 1, V = the mean of the other rewards of the group, for all tokens of a response."""
    others = (REWARDS.sum() - REWARDS) / 3
    values = others.unsqueeze(1).expand(4, 4)
    found = GAE(lam=1.0).estimate(at_end(REWARDS), values, MASK, torch.zeros(4, dtype=torch.bool))
    rloo = LeaveOneOut()(REWARDS, torch.zeros(4, dtype=torch.int64))
    assert torch.allclose(
        gradient(objective, found.advantages, MASK), gradient(objective, rloo, MASK), rtol=1e-12, atol=1e-15
    )


def test_lambda_zero_and_one_against_their_closed_forms() -> None:
    generator = torch.Generator().manual_seed(3)
    rewards, values = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    every, after = torch.ones(5, 7, dtype=torch.bool), torch.randn(5, generator=generator, dtype=torch.float64)
    following = torch.cat([values[:, 1:], after.unsqueeze(1)], 1)
    none = token_advantages(rewards, values, every, 0.9, torch.zeros(5), after)
    assert torch.allclose(none, rewards + 0.9 * following - values)
    whole = token_advantages(rewards, values, every, 0.9, torch.ones(5), after)
    for t in range(7):
        discounts = 0.9 ** torch.arange(7 - t, dtype=torch.float64)
        total = (rewards[:, t:] * discounts).sum(-1) + 0.9 ** (7 - t) * after
        assert torch.allclose(whole[:, t], total - values[:, t])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gamma": 1.1}, "gamma"),
        ({"lam": -0.1}, "lam"),
        ({"lam_value": 2.0}, "lam_value"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 0.05, "lam": 0.9}, "alpha"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, float], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        GAE(**options)  # type: ignore[arg-type]
