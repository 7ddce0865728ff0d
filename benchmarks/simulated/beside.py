"""What a run asks beside its policy on the simulated device: a critic and a teacher, by the package's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchmarks.ours import Groups, Ours
from benchmarks.simulated.counts import Counts
from benchmarks.simulated.device import COUNTS, move
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.advantages.gae import GAE
from gspo_lightning.loop.advantages.per_token import assign_token_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.old_policy.teacher import LocalTeacher
from gspo_lightning.objectives import GSPO, GSPOToken
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch

__all__ = ["Asks", "Beside", "Found"]

Asks = Literal["nobody", "a critic", "a teacher", "a teacher's distributions"]
STRENGTH = 3.0
"""What a teacher prefers, it prefers clearly: weights of its head, in units of the policy's."""


class _OnDevice(LocalTeacher):
    """``Module.to`` changes the data of parameters, which the simulated device cannot follow: it is there already."""

    def _to(self, device: torch.device) -> None:
        pass


@dataclass
class Found:
    """What they said, on the CPU, and what the host waited for meanwhile."""

    said: dict[str, Tensor] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    micro_batches: int = 0
    """That went through them, for values and learning together."""


class Beside:
    """A critic or a teacher, made of the policy as it is on the CPU.

    Args:
        ours: the policy, before it moves.
        asks: whom a run asks.
    """

    def __init__(self, ours: Ours, asks: Asks) -> None:
        self.critic: ValueModel | None = None
        self.teacher: LocalTeacher | None = None
        if asks == "a critic":
            ours.objective = GSPOToken(3e-4, 4e-4)
            self.critic = ValueModel(lr=1e-2)
            self.critic.build(ours.policy)
            with torch.no_grad():  # zero at first: no state would be worth anything
                weight = self.critic.head.weight
                weight.copy_(torch.linspace(-1.0, 1.0, weight.numel()).view_as(weight))
        elif asks != "nobody":
            exact = asks == "a teacher's distributions"
            ours.objective = GSPO(3e-4, 4e-4, distill_coef=1.0, distill_exact=exact)
            other = ours.policy.frozen_copy()
            with torch.no_grad():
                other.model.get_output_embeddings().weight.mul_(STRENGTH)
            self.teacher = ours.teacher = _OnDevice(other, exact=exact)

    def move(self) -> None:
        """To the device."""
        if self.teacher is not None:
            move(self.teacher.policy)
        if self.critic is not None and self.critic.backbone is not None:
            move(self.critic.backbone)
            move(self.critic.head)

    def batches(self, ours: Ours, groups: Groups, mini_batches: int) -> tuple[list[MiniBatch], Found]:
        """Mini-batches with advantages and, of a teacher, log-probabilities; and what was asked for them."""
        if self.critic is not None:
            return self._judged(self.critic, ours, groups, mini_batches)
        batches, found = ours.pack(groups, mini_batches), Found()
        if self.teacher is not None and not self.teacher.exact:
            COUNTS.clear()
            batches = self.teacher.fill(batches, 1.0, ours.policy.device)
            found.counts, found.micro_batches = COUNTS.taken(), _number(batches)
            with COUNTS.pause():
                parts = [p for b in batches for p in b.micro_batches]
                said = torch.cat([p.teacher_logprobs.flatten().cpu() for p in parts if p.teacher_logprobs is not None])
                found.said = {"teacher's log-probabilities": said}
        return batches, found

    def _judged(
        self, critic: ValueModel, ours: Ours, groups: Groups, mini_batches: int
    ) -> tuple[list[MiniBatch], Found]:
        policy, found = ours.policy, Found()
        batch = RolloutBatch.of(
            groups, mini_batches=mini_batches, max_tokens=ours.max_tokens, packed=policy.packed, deal=ours.deal
        )
        critic.optimizers = [
            torch.optim.AdamW(weights, lr=1e-2, eps=1e-2)
            for weights in (critic.head.parameters(), critic.trained_backbone())
        ]  # their steps follow the size of a gradient
        COUNTS.clear()
        critic.judge(batch)
        with COUNTS.pause():
            assign_token_advantages(groups, GAE(), Shaping(), policy.device)
        critic.learn(batch)
        found.counts, found.micro_batches = COUNTS.taken(), _number(batch.mini_batches)
        with COUNTS.pause():
            values = [r.values for group in groups for r in group if r.values is not None]
            weights = [*critic.head.parameters(), *critic.trained_backbone()]
            found.said = {
                "values": torch.cat(values),
                "critic's weights": torch.cat([w.detach().cpu().flatten() for w in weights]),
            }
        batch.take_advantages()
        return batch.mini_batches, found


def _number(batches: Sequence[MiniBatch]) -> int:
    return sum(len(b.micro_batches) for b in batches)
