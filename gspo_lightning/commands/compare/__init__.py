"""``gspo compare``: compare variants of a config on the same prompts and seeds, or objectives on the same rollouts."""

from gspo_lightning.commands.compare.command import main

__all__ = ["main"]
