"""Objectives: log-probabilities and advantages in, a loss to minimise and its measurements out.

Imports nothing but torch and this package's types, so that an objective can be taken into any other trainer::

    out = GSPO(clip_low=3e-4, clip_high=4e-4)(logprobs, old_logprobs, advantages, response_mask)
    out.loss.backward()

A new objective is a dataclass that subclasses :class:`Objective` (or :class:`RatioClip`, if only the ratio is new)
and implements ``term``. Defining it registers it; KL, entropy, off-policy masks, importance weights, denominators and
metrics come with it.

BNPO is left out on purpose. It divides by the response tokens of the local micro-batch, so its gradient changes with
the token budget and the number of ranks: two runs that differ only in how a mini-batch is split would train different
models. Every denominator here counts the whole mini-batch (``count``). DAPO is BNPO without this defect.
"""

from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.cispo import CISPO
from gspo_lightning.objectives.dapo import DAPO
from gspo_lightning.objectives.dppo import DPPOTV
from gspo_lightning.objectives.dr_grpo import DrGRPO
from gspo_lightning.objectives.gmpo import GMPO
from gspo_lightning.objectives.grpo import GRPO
from gspo_lightning.objectives.gspo import GSPO, RatioClip
from gspo_lightning.objectives.gspo_token import GSPOToken
from gspo_lightning.objectives.inputs import LossInputs, Rows
from gspo_lightning.objectives.luspo import LUSPO
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.multiscale import MultiScale
from gspo_lightning.objectives.objective import Objective
from gspo_lightning.objectives.ppo import PPO
from gspo_lightning.objectives.reinforce import REINFORCE
from gspo_lightning.objectives.sapo import SAPO
from gspo_lightning.objectives.segment import Segment, segments_by_delimiter, segments_by_length, segments_by_turn
from gspo_lightning.objectives.vespo import VESPO

__all__ = [
    "CISPO",
    "DAPO",
    "DPPOTV",
    "GMPO",
    "GRPO",
    "GSPO",
    "LUSPO",
    "PPO",
    "REINFORCE",
    "SAPO",
    "VESPO",
    "Aggregation",
    "DrGRPO",
    "GSPOToken",
    "LossInputs",
    "MultiScale",
    "Objective",
    "RatioClip",
    "Rows",
    "Segment",
    "Term",
    "segments_by_delimiter",
    "segments_by_length",
    "segments_by_turn",
]
