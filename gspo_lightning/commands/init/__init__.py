"""``gspo init``: write a starter project into an empty folder."""

from gspo_lightning.commands.init.command import main

__all__ = ["main"]
