"""Methods of decoding that were measured for a policy's model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

LENDING = threading.Lock()
"""Held while a decoder that is kept is taken: an update may free it from another thread."""


class Kept(Protocol):
    """Memory of a device that stays between rollouts."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""

    busy: bool
    """True while a rollout uses it."""

    def release(self) -> None:
        """Give back what can be made again quickly, so that the rest is gone with the last reference."""


@dataclass(slots=True)
class Decoding:
    """Decoding of a policy's tokens, as measured (:mod:`gspo_lightning.rollouts.verify`)."""

    way: Literal["shared", "padded", "generate"] | None = None
    """Decoding method.

    ``shared``: a prompt's keys and values are shared by its rows. ``padded``: rows are padded to one width in
    transformers' own cache. ``generate``: transformers' ``generate``. None: not measured; the first of them that the
    policy's layout allows.
    """
    fast_decoder: dict[torch.dtype, bool] = field(default_factory=dict)
    """Dtype of products -> True if ``shared`` works without the model's modules
    (:mod:`gspo_lightning.rollouts.sampler.fast_decoder`); no entry: not compared yet."""
    graphs: bool | None = None
    """True if steps were recorded and gave the same when replayed, False if they gave something else."""
    failed_graphs: int = 0
    """Recordings that failed; the next rollout tries again."""
    device_decoder: bool | None = None
    """True if an accelerator decodes as the modules do (:mod:`gspo_lightning.rollouts.sampler.device_decoder`)."""
    compiled: bool | None = None
    """False if PyTorch's compiler failed on what a decode step computes between its products."""
    fallback: str | None = None
    """Why an accelerator decodes another way, told once."""
    kept: Kept | None = None
    """Decoder of the run, with its copy of the weights."""
    rounding: dict[torch.dtype, float] = field(default_factory=dict)
    """Largest mean difference of two decoders' log-probabilities (nats) by rounding alone, by dtype of products."""
    cast: frozenset[str] | None = None
    """Parameters that only autocast reads, after a cast (:mod:`gspo_lightning.policy.numerics.autocast_weights`)."""
    verified: set[str] = field(default_factory=set)
    """Kinds of sources that were compared with the training forward."""

    def release(self) -> bool:
        """Free the decoder of the run, which the next rollout makes anew; True if there was one nobody uses."""
        with LENDING:
            if self.kept is None or self.kept.busy:
                return False
            kept = self.kept
            self.kept = None
        kept.release()
        return True
