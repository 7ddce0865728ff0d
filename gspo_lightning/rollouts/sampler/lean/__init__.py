"""A decode step without modules: the same numbers with fewer small operations.

The rest of the package knows two things of it: ``LeanStack.of`` (a decode step, or None where a policy is none that it
is for), and the bytes of weights up to which it is made, for whoever plans memory.
"""

from gspo_lightning.rollouts.sampler.lean.stack import LARGEST_COPY, LeanStack

__all__ = ["LARGEST_COPY", "LeanStack"]
