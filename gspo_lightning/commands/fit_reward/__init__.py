"""``gspo fit-reward``: train a reward model on preference pairs."""

from gspo_lightning.commands.fit_reward.command import main

__all__ = ["main"]
