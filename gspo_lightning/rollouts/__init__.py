"""Rollout sources, and the environments and agents that they talk to.

The members are imported when the first of them is accessed (PEP 562): an environment needs no sampler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gspo_lightning.rollouts.agents import AgentRollouts
    from gspo_lightning.rollouts.conversations.environment import EnvironmentRollouts
    from gspo_lightning.rollouts.drawing import Draws, sample_tokens
    from gspo_lightning.rollouts.environments import Environment
    from gspo_lightning.rollouts.generate import TransformersGenerate
    from gspo_lightning.rollouts.recording.recorded import Recorded
    from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
    from gspo_lightning.rollouts.source import ResponsePrefix, RolloutSource
    from gspo_lightning.rollouts.vllm import VLLMEngine, VLLMServer

__all__ = [
    "AgentRollouts",
    "Draws",
    "Environment",
    "EnvironmentRollouts",
    "GroupedSampler",
    "Recorded",
    "ResponsePrefix",
    "RolloutSource",
    "TransformersGenerate",
    "VLLMEngine",
    "VLLMServer",
    "sample_tokens",
]

_LAZY = {
    "AgentRollouts": "gspo_lightning.rollouts.agents",
    "Draws": "gspo_lightning.rollouts.drawing",
    "Environment": "gspo_lightning.rollouts.environments",
    "EnvironmentRollouts": "gspo_lightning.rollouts.conversations.environment",
    "GroupedSampler": "gspo_lightning.rollouts.sampler.sampler",
    "Recorded": "gspo_lightning.rollouts.recording.recorded",
    "ResponsePrefix": "gspo_lightning.rollouts.source",
    "RolloutSource": "gspo_lightning.rollouts.source",
    "TransformersGenerate": "gspo_lightning.rollouts.generate",
    "VLLMEngine": "gspo_lightning.rollouts.vllm",
    "VLLMServer": "gspo_lightning.rollouts.vllm",
    "sample_tokens": "gspo_lightning.rollouts.drawing",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for lazy, module in _LAZY.items():  # all: who looks for one source by name may find the others
        globals()[lazy] = getattr(importlib.import_module(module), lazy)
    return globals()[name]
