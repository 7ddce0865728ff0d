"""Versions of what a run depends on: configs, checkpoints and summaries name them, and a resume compares them."""

from __future__ import annotations

import platform

from gspo_lightning.registry import installed_version

__all__ = ["PACKAGES", "versions"]

PACKAGES = ("gspo_lightning", "torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "tensorboard")


def versions() -> dict[str, str]:
    """Of Python and of the packages whose numbers matter."""
    return {"python": platform.python_version(), **{name: installed_version(name) for name in PACKAGES}}
