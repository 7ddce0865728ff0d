"""What a config will need, before any GPU is paid for: ``gspo plan``."""

from gspo_lightning.commands.plan.command import main

__all__ = ["main"]
