"""Versions of a run's dependencies: stored in configs, checkpoints and summaries, and compared on resume."""

from __future__ import annotations

import functools
import platform

from gspo_lightning.registry import installed_version

__all__ = ["PACKAGES", "versions"]

PACKAGES = ("gspo_lightning", "torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "tensorboard")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that influence results."""
    return {"python": platform.python_version(), **{name: _installed(name) for name in PACKAGES}}


_installed = functools.cache(installed_version)
