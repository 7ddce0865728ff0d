"""``gspo data``: prepare files of prompts for training."""

from gspo_lightning.commands.data.command import main

__all__ = ["main"]
