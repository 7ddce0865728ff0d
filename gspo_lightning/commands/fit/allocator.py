"""CUDA allocator settings: expandable segments, set before the first allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["allocator_settings", "grow_segments"]

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
GROWING = "expandable_segments:True"


def allocator_settings(environment: Mapping[str, str], rollouts: Any) -> dict[str, str]:
    """Return the environment variables to set; expandable segments avoid fragmentation by rows of many lengths.

    Empty if the user has set one already, or if vLLM sleeps in this process, as it does without
    ``enable_sleep_mode: false``: its own allocator, which frees the memory, refuses expandable segments.

    Args:
        environment: environment variables of this process.
        rollouts: ``data.rollouts``, a class path with its arguments.
    """
    if any(name in environment for name in NAMES):
        return {}
    options = _of(_of(rollouts, "init_args"), "options")
    engine = str(_of(rollouts, "class_path") or "").endswith("VLLMEngine")
    sleeps = engine and (options is None or options.get("enable_sleep_mode", True))
    return {} if sleeps else {NAMES[1]: GROWING}


def grow_segments(rollouts: Any) -> None:
    """Set :func:`allocator_settings` if there is a GPU; ranks started by this process inherit them."""
    if torch.cuda.is_available():
        os.environ.update(allocator_settings(os.environ, rollouts))


def _of(config: Any, name: str) -> Any:
    return None if config is None else config.get(name)
