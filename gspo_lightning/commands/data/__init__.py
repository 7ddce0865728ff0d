"""``gspo data``: files of prompts before training."""

from gspo_lightning.commands.data.command import main

__all__ = ["main"]
