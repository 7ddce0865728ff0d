"""Generalised advantage estimation: one advantage per token, from rewards and the values of a critic.

The steps of an episode are the tokens that the policy chose. Tokens between them (tool results, other turns) are no
steps: neither discount nor trace counts them, and the next value is that of the next token that the policy chose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError, check_number
from gspo_lightning.loop.advantages.advantages import Advantages, Groups

LAMBDA = 0.95
"""Default of VC-PPO, and the usual choice."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """GAE estimates of N rows and T tokens, in reward units, float64; 0 at tokens that the policy did not choose.

    ``advantages`` [N, T] for the policy, not whitened; ``returns`` [N, T], the critic's targets; ``floored`` [N] bool:
    rows whose length-adaptive lambda is 0.
    """

    advantages: Tensor
    returns: Tensor
    floored: Tensor


class GAE(Advantages):
    """Generalised advantage estimation over tokens (arXiv 1506.02438, Eq. 16): needs ``model.critic``.

    ``A_t = delta_t + gamma lam A_t+1`` with ``delta_t = r_t + gamma V_t+1 - V_t``, where t counts the tokens that the
    policy chose and V is 0 after the last of them. The reward is paid at the last token, a step's score at the end of
    the step, a turn's reward at the end of the turn (with ``data.turn_credit: turn``), and a KL penalty
    (``data.kl_in_reward``) at every token.

    Args:
        gamma: discount per token, in [0, 1]. Below 1, long responses are worth less.
        lam: trace decay of the policy's advantages, in [0, 1]; None: 0.95, or the length-adaptive one of ``alpha``.
        lam_value: trace decay of the critic's targets, in [0, 1]. 1 makes them the sums of earned rewards: below 1,
            a reward at the end hardly reaches the first tokens of a long response (VC-PPO, arXiv 2503.01491).
        alpha: above 0, lam is max(0, 1 - 1 / (alpha * tokens of the response)) (VAPO, arXiv 2504.05118; its value is
            0.05, which makes lam 0 up to 20 tokens). None: lam is the same for all.
        whiten: subtract the mean and divide by the standard deviation over all tokens of the rollout batch, on all
            ranks. Advantages that differ by rounding only, by at most 1e-6 of the largest reward or value, are all 0.
        bootstrap_truncated: bootstrap a response that was cut at a limit: what follows is worth the value of the state
            before its last token, the last known value. Otherwise the response ends there, like any other, and nothing
            follows.
    """

    per_token = True

    def __init__(
        self,
        gamma: float = 1.0,
        lam: float | None = None,
        lam_value: float = 1.0,
        alpha: float | None = None,
        whiten: bool = True,
        bootstrap_truncated: bool = False,
    ) -> None:
        check_number("gamma", gamma, low=0.0, high=1.0)
        check_number("lam_value", lam_value, low=0.0, high=1.0)
        if lam is not None:
            check_number("lam", lam, low=0.0, high=1.0)
        if alpha is not None:
            check_number("alpha", alpha, low=0.0, open_low=True)
        if lam is not None and alpha is not None:
            raise UserError("alpha", f"is {alpha} and lam is {lam}, but alpha computes lam", fix="set one of them")
        self.gamma = gamma
        self.lam = lam
        self.lam_value = lam_value
        self.alpha = alpha
        self.whiten = whiten
        self.bootstrap_truncated = bootstrap_truncated
        self.warned = False
        """True after warning that most responses are too short for ``alpha``."""

    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        """Refuse: a reward alone says nothing about tokens.

        Raises:
            UserError: always.
        """
        raise UserError("GAE", "has one advantage per token and needs values, not rewards of groups", fix="estimate()")

    def estimate(self, rewards: Tensor, values: Tensor, mask: Tensor, truncated: Tensor) -> Estimates:
        """Return advantages and returns of N responses of up to T tokens.

        Args:
            rewards: [N, T] float, earned by each token; read where ``mask`` is True.
            values: [N, T] float, the critic's value of the state before each token.
            mask: [N, T] bool, True on tokens that the policy chose.
            truncated: [N] bool, cut at a limit.
        """
        rewards = torch.where(mask, rewards.double(), 0.0)
        values = torch.where(mask, values.double(), 0.0)
        lengths = mask.sum(-1)
        if self.alpha is not None:
            lam = length_adaptive_lambda(lengths, self.alpha)
            floored = (lam == 0) & (lengths > 0)
        else:
            lam = torch.full(lengths.shape, LAMBDA if self.lam is None else self.lam, dtype=torch.float64)
            floored = torch.zeros_like(truncated)  # a lam of 0 that was set is no floor
        after = torch.zeros_like(lam)
        if self.bootstrap_truncated:
            last_values = values.gather(1, _last(mask).unsqueeze(1)).squeeze(1)
            after = torch.where(truncated & (lengths > 0), last_values, 0.0)
        advantages = token_advantages(rewards, values, mask, self.gamma, lam, after)
        lam_value = torch.full_like(lam, self.lam_value)
        returns = values + token_advantages(rewards, values, mask, self.gamma, lam_value, after)
        return Estimates(advantages, returns, floored)

    def __repr__(self) -> str:
        traces = f"gamma={self.gamma!r}, lam={self.lam!r}, lam_value={self.lam_value!r}, alpha={self.alpha!r}"
        return f"GAE({traces}, whiten={self.whiten!r}, bootstrap_truncated={self.bootstrap_truncated!r})"


def token_advantages(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: Tensor, after: Tensor) -> Tensor:
    """Return float64 advantages [N, T], 0 outside the mask: Eq. 16 of arXiv 1506.02438, from the last token back.

    Args:
        rewards: [N, T] float64.
        values: [N, T] float64, of the state before each token.
        mask: [N, T] bool, True on the steps; others are skipped.
        gamma: discount per step.
        lam: [N] float64, trace decay of each row.
        after: [N] float64, value of the state after the last step of each row.

    >>> one = torch.ones(1, 3, dtype=torch.float64)
    >>> paid = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    >>> half, none = torch.full((1,), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    >>> token_advantages(paid, one * 0.5, one.bool(), 1.0, half, none)
    tensor([[0.1250, 0.2500, 0.5000]], dtype=torch.float64)
    """
    advantages = torch.zeros_like(values)
    lam = lam.double()
    next_value = after.double()
    next_advantage = torch.zeros_like(lam)
    for t in reversed(range(values.shape[1])):
        is_step = mask[:, t]
        advantage = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * next_advantage
        next_advantage = torch.where(is_step, advantage, next_advantage)
        next_value = torch.where(is_step, values[:, t], next_value)
        advantages[:, t] = torch.where(is_step, advantage, 0.0)
    return advantages


def length_adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """Return max(0, 1 - 1 / (alpha l)), [N] float64: VAPO, arXiv 2504.05118.

    The floor is ours: below 1 / alpha tokens the formula is negative.

    >>> length_adaptive_lambda(torch.tensor([3, 20, 40, 100]), 0.05)
    tensor([0.0000, 0.0000, 0.5000, 0.8000], dtype=torch.float64)
    """
    return (1 - 1 / (alpha * lengths.clamp(min=1).double())).clamp(min=0.0)


def _last(mask: Tensor) -> Tensor:
    """Return the index of the last True of each row, [N] int64; 0 for a row without one."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, positions, 0).amax(-1)
