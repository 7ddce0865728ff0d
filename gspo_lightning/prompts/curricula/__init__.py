"""Curricula: choose the prompts of an iteration by what is known of them."""

from gspo_lightning.prompts.curricula.base import Curriculum, Seen
from gspo_lightning.prompts.curricula.informative import Informative
from gspo_lightning.prompts.curricula.pools import DifficultyPools
from gspo_lightning.prompts.curricula.target import TargetRate
from gspo_lightning.prompts.curricula.uniform import Uniform

__all__ = ["Curriculum", "DifficultyPools", "Informative", "Seen", "TargetRate", "Uniform"]
