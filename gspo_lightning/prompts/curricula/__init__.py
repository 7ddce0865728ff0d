"""Curricula: choose the prompts of an iteration by what is known of them."""

from gspo_lightning.prompts.curricula.curriculum import Curriculum, Seen, Uniform
from gspo_lightning.prompts.curricula.informative import Informative
from gspo_lightning.prompts.curricula.pools import DifficultyPools
from gspo_lightning.prompts.curricula.target import TargetRate

__all__ = ["Curriculum", "DifficultyPools", "Informative", "Seen", "TargetRate", "Uniform"]
