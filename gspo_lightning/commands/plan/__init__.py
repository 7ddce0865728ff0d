"""``gspo plan``: estimate the memory and compute of a config, before you pay for a GPU."""

from gspo_lightning.commands.plan.command import main

__all__ = ["main"]
