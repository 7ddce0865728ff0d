"""Rewards: scores of completions, computed in worker processes that may hang or crash without harm.

``Reward`` and its input and output types are imported at once. The built-in rewards are imported when the first of the
other names is accessed (PEP 562), so a worker loads only the rewards it computes. None of them imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, SampleScore, Score, ScoreStatus, TrainerState

if TYPE_CHECKING:
    from gspo_lightning.rewards.classifier import SequenceClassificationReward
    from gspo_lightning.rewards.code.executor import CodeExecutor
    from gspo_lightning.rewards.exact import ExactMatch
    from gspo_lightning.rewards.format import FormatReward
    from gspo_lightning.rewards.function import FunctionReward
    from gspo_lightning.rewards.gym.reward import ReasoningGym
    from gspo_lightning.rewards.instructions.verifier import IFVerifier
    from gspo_lightning.rewards.judge.judge import LLMJudge
    from gspo_lightning.rewards.logic.puzzle import LogicPuzzle
    from gspo_lightning.rewards.math.verifier import MathVerifier
    from gspo_lightning.rewards.steps import EnvironmentReward, StepReward
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

_LAZY = {
    "SequenceClassificationReward": "classifier",
    "CodeExecutor": "code.executor",
    "EnvironmentReward": "steps",
    "ExactMatch": "exact",
    "FormatReward": "format",
    "FunctionReward": "function",
    "ReasoningGym": "gym.reward",
    "IFVerifier": "instructions.verifier",
    "LLMJudge": "judge.judge",
    "LogicPuzzle": "logic.puzzle",
    "MathVerifier": "math.verifier",
    "StepReward": "steps",
    "Pending": "workers.runner",
    "RewardRunner": "workers.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for lazy, module in _LAZY.items():  # all: looking up one built-in reward may find the others by name
        globals()[lazy] = getattr(importlib.import_module(f"{__name__}.{module}"), lazy)
    return globals()[name]
