"""Curricula: choose the prompts of an iteration by what is known of them."""

from gspo_lightning.data.prompts.curricula.curriculum import Curriculum, Seen, Uniform
from gspo_lightning.data.prompts.curricula.informative import Informative
from gspo_lightning.data.prompts.curricula.pools import DifficultyPools
from gspo_lightning.data.prompts.curricula.target import TargetRate

__all__ = ["Curriculum", "DifficultyPools", "Informative", "Seen", "TargetRate", "Uniform"]
