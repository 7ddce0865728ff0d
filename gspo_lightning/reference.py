"""The reference policy: the frozen start of a run, which a KL term is measured to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from gspo_lightning.policy import Policy
from gspo_lightning.types import MiniBatch

__all__ = ["ReferencePolicy"]


class ReferencePolicy:
    """A frozen copy of the initial policy, kept only where an objective has ``kl_coef`` above 0.

    It is not part of the module tree: neither the optimizer, nor DDP, nor a checkpoint, nor an export sees it. A
    resumed run makes it again from the same start. One more copy of the weights in memory.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = Policy(copy.deepcopy(policy.model), policy.tokenizer).requires_grad_(False).eval()

    @torch.no_grad()
    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        """The mini-batches with ``ref_logprobs``, evaluated once per rollout batch in the training layout."""
        self.policy.to(device)
        return [
            replace(
                batch,
                micro_batches=[
                    replace(m, ref_logprobs=self.policy(m.to(device), temperature)[0].to(m.input_ids.device))
                    for m in batch.micro_batches
                ],
            )
            for batch in batches
        ]
