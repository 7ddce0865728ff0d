"""A decode step without modules: the same numbers with fewer small operations.

The rest of the package knows two things of it: ``lean_stack`` (a decode step, or None where a policy is none that it is
for), and the bytes of weights up to which they are copied on a CPU, for whoever plans memory.
"""

from __future__ import annotations

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.lean.direct import DirectStack
from gspo_lightning.rollouts.sampler.lean.stack import LARGEST_COPY, LeanStack

__all__ = ["LARGEST_COPY", "DirectStack", "LeanStack", "lean_stack"]


def lean_stack(policy: Policy) -> LeanStack | DirectStack | None:
    """A decode step for a policy as it is now, on its device."""
    return LeanStack.of(policy) or DirectStack.of(policy)
