"""Rewards: what a completion is worth, judged in worker processes that may hang or crash without harm.

Importing this room defines the built-in rewards; none of them imports torch.
"""

from __future__ import annotations

from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.classifier import SequenceClassificationReward
from gspo_lightning.rewards.code.executor import CodeExecutor
from gspo_lightning.rewards.environment import EnvironmentReward
from gspo_lightning.rewards.exact import ExactMatch
from gspo_lightning.rewards.format import FormatReward
from gspo_lightning.rewards.function import FunctionReward
from gspo_lightning.rewards.gym.reward import ReasoningGym
from gspo_lightning.rewards.instructions.verifier import IFVerifier
from gspo_lightning.rewards.judge.judge import LLMJudge
from gspo_lightning.rewards.logic.puzzle import LogicPuzzle
from gspo_lightning.rewards.math.verifier import MathVerifier
from gspo_lightning.rewards.steps import StepReward
from gspo_lightning.rewards.types import Sample, SampleScore, Score, ScoreStatus, TrainerState
from gspo_lightning.rewards.workers.runner import Pending, RewardRunner

__all__ = [
    "CodeExecutor",
    "EnvironmentReward",
    "ExactMatch",
    "FormatReward",
    "FunctionReward",
    "IFVerifier",
    "LLMJudge",
    "LogicPuzzle",
    "MathVerifier",
    "Pending",
    "ReasoningGym",
    "Reward",
    "RewardRunner",
    "Sample",
    "SampleScore",
    "Score",
    "ScoreStatus",
    "SequenceClassificationReward",
    "StepReward",
    "TrainerState",
]
