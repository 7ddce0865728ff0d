"""Decode step without modules: the same numbers with fewer small operations.

The rest of the package uses two names: ``lean_stack`` (a decode step, or None for an unsupported policy), and
``LARGEST_COPY``, the limit in bytes of weights copied on a CPU, for memory planning.
"""

from __future__ import annotations

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.lean.direct import DirectStack
from gspo_lightning.rollouts.sampler.lean.stack import LARGEST_COPY, LeanStack

__all__ = ["LARGEST_COPY", "DirectStack", "LeanStack", "lean_stack"]


def lean_stack(policy: Policy) -> LeanStack | DirectStack | None:
    """Return a decode step for the policy's current weights, on its device, or None."""
    return LeanStack.of(policy) or DirectStack.of(policy)
