"""``gspo evaluate``: benchmarks with confidence intervals and paired tests."""

from gspo_lightning.commands.evaluate.command import main

__all__ = ["main"]
