"""``gspo compare``: several objectives, the same prompts and seeds, one picture and one table."""

from gspo_lightning.commands.compare.command import main

__all__ = ["main"]
