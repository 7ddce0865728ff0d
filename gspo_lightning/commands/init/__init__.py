"""A project to start from, written into an empty folder: ``gspo init``."""

from gspo_lightning.commands.init.command import main

__all__ = ["main"]
