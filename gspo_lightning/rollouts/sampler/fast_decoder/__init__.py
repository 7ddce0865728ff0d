"""Decode step without modules: the same numbers with fewer small operations.

The rest of the package uses these names: ``fast_decoder_layers`` (a decode step, or None for an unsupported policy),
``DecoderTwin``, an accelerator's copy of the weights, with its ``Pieces``, which may be compiled; for memory planning
``may_be_copied``, and ``LARGEST_COPY``, the limit in bytes of weights copied on a CPU.
"""

from __future__ import annotations

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.fast_decoder.direct import DirectDecoderLayers
from gspo_lightning.rollouts.sampler.fast_decoder.layers import LARGEST_COPY, FastDecoderLayers
from gspo_lightning.rollouts.sampler.fast_decoder.pieces import Pieces, can_compile, compiled_pieces
from gspo_lightning.rollouts.sampler.fast_decoder.twin import DecoderTwin, may_be_copied

__all__ = [
    "LARGEST_COPY",
    "DecoderTwin",
    "DirectDecoderLayers",
    "FastDecoderLayers",
    "Pieces",
    "can_compile",
    "compiled_pieces",
    "fast_decoder_layers",
    "may_be_copied",
]


def fast_decoder_layers(policy: Policy) -> FastDecoderLayers | DirectDecoderLayers | None:
    """Return a decode step for the policy's current weights, on its device, or None."""
    return FastDecoderLayers.of(policy) or DirectDecoderLayers.of(policy)
