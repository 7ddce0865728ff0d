"""``gspo fit-reward``: a reward model from preference pairs."""

from gspo_lightning.commands.fit_reward.command import main

__all__ = ["main"]
