"""Versions of what a run depends on: configs, checkpoints and summaries name them, and a resume compares them."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "versions"]

PACKAGES = ("gspo_lightning", "torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "tensorboard")


def versions() -> dict[str, str]:
    """Of Python and of the packages whose numbers matter."""
    return {"python": platform.python_version(), **{name: _installed(name) for name in PACKAGES}}


@functools.cache
def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
