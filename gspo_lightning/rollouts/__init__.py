"""Rollout sources."""

from gspo_lightning.rollouts.base import Beginning, Draws, RolloutSource, sample_tokens
from gspo_lightning.rollouts.generate import TransformersGenerate
from gspo_lightning.rollouts.sampler import GroupedSampler

__all__ = ["Beginning", "Draws", "GroupedSampler", "RolloutSource", "TransformersGenerate", "sample_tokens"]
