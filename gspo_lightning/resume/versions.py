"""Versions of what a run depends on: configs, checkpoints and summaries name them, and a resume compares them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "versions"]

PACKAGES = ("gspo_lightning", "torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "tensorboard")


def versions() -> dict[str, str]:
    """Of Python and of the packages whose numbers matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
