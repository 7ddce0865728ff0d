"""Where a run writes."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer

__all__ = ["run_folder"]


def run_folder(trainer: Trainer) -> Path:
    """The folder of this run, the same on every rank (must be called on every rank)."""
    return Path(trainer.log_dir or trainer.default_root_dir)
