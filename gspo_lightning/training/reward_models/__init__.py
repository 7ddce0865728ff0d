"""Reward models: a sequence classifier with one output, trained on preference pairs."""

from gspo_lightning.training.reward_models.data import PreferenceDataModule
from gspo_lightning.training.reward_models.module import RewardModule

__all__ = ["PreferenceDataModule", "RewardModule"]
