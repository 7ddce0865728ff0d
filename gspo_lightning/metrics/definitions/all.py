"""All metrics, in the order of the document."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.clip import CLIP
from gspo_lightning.metrics.definitions.collapse import COLLAPSE
from gspo_lightning.metrics.definitions.critic import CRITIC
from gspo_lightning.metrics.definitions.distill import DISTILL
from gspo_lightning.metrics.definitions.drift import DRIFT
from gspo_lightning.metrics.definitions.evaluation import EVALUATION
from gspo_lightning.metrics.definitions.experts import MOE
from gspo_lightning.metrics.definitions.noise import NOISE, STALENESS
from gspo_lightning.metrics.definitions.preference import PREFERENCE
from gspo_lightning.metrics.definitions.ratio import BY_MINI_BATCH, RATIO
from gspo_lightning.metrics.definitions.response import RESPONSE
from gspo_lightning.metrics.definitions.reward import REWARD
from gspo_lightning.metrics.definitions.run import COLD_START, DATA, SPEED
from gspo_lightning.metrics.definitions.source import SOURCES
from gspo_lightning.metrics.definitions.spec import MetricSpec
from gspo_lightning.metrics.definitions.update import OBJECTIVE, UPDATE

__all__ = ["METRICS"]

METRICS: tuple[MetricSpec, ...] = (
    *COLD_START, *REWARD, *RESPONSE, *CRITIC, *SOURCES, *RATIO, *BY_MINI_BATCH, *CLIP, *DRIFT, *DISTILL, *UPDATE, *DATA,
    *COLLAPSE, *STALENESS, *NOISE, *SPEED, *EVALUATION, *OBJECTIVE, *MOE, *PREFERENCE,
)  # fmt: skip
"""Every tag of a run."""
