"""What an environment paid, as a reward."""

from __future__ import annotations

from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.types import Score

__all__ = ["EnvironmentReward"]


class EnvironmentReward(Reward):
    """The sum of the rewards that the environment gave for the turns of a conversation.

    >>> EnvironmentReward().score(environment_reward=1.5).reward
    1.5
    """

    def score(self, environment_reward: float | None = None) -> Score:
        """The column that a conversation provides; without one there is no reward."""
        return Score.missing("no conversation") if environment_reward is None else Score(float(environment_reward))
