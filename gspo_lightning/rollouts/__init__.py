"""Rollout sources."""

from gspo_lightning.rollouts.base import Draws, RolloutSource, sample_tokens
from gspo_lightning.rollouts.generate import TransformersGenerate
from gspo_lightning.rollouts.sampler import GroupedSampler

__all__ = ["Draws", "GroupedSampler", "RolloutSource", "TransformersGenerate", "sample_tokens"]
