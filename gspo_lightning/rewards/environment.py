"""The rewards of an environment, as a reward."""

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
        """Return the column ``environment_reward`` of a conversation; *missing* without one."""
        return Score.missing("no conversation") if environment_reward is None else Score(float(environment_reward))
