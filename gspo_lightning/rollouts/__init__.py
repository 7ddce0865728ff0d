"""Rollout sources."""

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
