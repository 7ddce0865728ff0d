"""Methods of decoding that were measured for a policy's model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Decoding:
    """Decoding of a policy's tokens, as measured (:mod:`gspo_lightning.rollouts.verify`)."""

    way: Literal["shared", "padded", "generate"] | None = None
    """Decoding method.

    ``shared``: a prompt's keys and values are shared by its rows. ``padded``: rows are padded to one width in
    transformers' own cache. ``generate``: transformers' ``generate``. None: not measured; the first of them that the
    policy's layout allows.
    """
    fast_decoder: bool | None = None
    """True if ``shared`` works without the model's modules (:mod:`gspo_lightning.rollouts.sampler.fast_decoder`)."""
    graphs: bool | None = None
    """True if steps of ``shared`` work as CUDA graphs (:mod:`gspo_lightning.rollouts.sampler.step_graphs`)."""
    cast: frozenset[str] | None = None
    """Parameters that only autocast reads, after a cast (:mod:`gspo_lightning.policy.numerics.autocast_weights`)."""
    verified: set[str] = field(default_factory=set)
    """Kinds of sources that were compared with the training forward."""
