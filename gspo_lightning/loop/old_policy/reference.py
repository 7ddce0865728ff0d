"""Reference policy of the KL term: the frozen policy at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.distributed import from_first_rank
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.old_policy.frozen import FrozenPolicy, without_routing
from gspo_lightning.policy.adapters.lora import adapters_off, adapts_from_base
from gspo_lightning.policy.packing.batches import cut, filler, make_micro_batch
from gspo_lightning.policy.packing.rows import Row, rows_of, store
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import in_step, unwrapped


class ReferencePolicy(FrozenPolicy):
    """Frozen copy of the initial policy, kept only if a KL term needs it (``kl_coef``, ``kl_in_reward``).

    Costs one more copy of the trained weights. If new adapters are trained, it costs none: the reference is the policy
    with its adapters off.

    Args:
        policy: at the start of the run.
        shard: shards a copy over ranks.
    """

    field = "ref_logprobs"

    def __init__(self, policy: Policy, shard: Callable[[Policy], Policy] | None = None) -> None:
        self.adapted = from_first_rank(lambda: adapts_from_base(policy.model))  # others may have no weights yet
        if self.adapted:
            self.policy = policy
        else:
            super().__init__(policy.frozen_copy(), shard)

    def follow(self, policy: Policy) -> None:
        """Point to the sharded policy, if the reference is the policy with its adapters off."""
        if self.adapted:
            self.policy = policy

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        base = adapters_off(unwrapped(self.policy).model) if self.adapted else nullcontext()
        with super()._as_it_was(), base:
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to rebuild the reference beside the policy of a checkpoint."""
        return {"adapters_off": self.adapted, "weights": {} if self.adapted else self.policy.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], policy: Policy) -> None:
        """Load what :meth:`state_dict` returned, whatever start this reference was built from.

        Args:
            state: of that method.
            policy: of the same checkpoint, whole.
        """
        was_adapted = self.adapted
        self.adapted = bool(state["adapters_off"])
        if self.adapted:
            self.policy = policy
            return
        if was_adapted:  # there is no copy to load into
            super().__init__(policy.frozen_copy())
        self.policy.model.load_state_dict(state["weights"])

    @torch.no_grad()
    def penalise(
        self,
        rollouts: Sequence[Rollout],
        old: Policy,
        coef: float,
        temperature: float,
        max_tokens: int,
        device: torch.device,
    ) -> None:
        """Set each rollout's ``kl_penalty``: ``coef`` times its summed log-ratio to the reference, in nats.

        ``token_penalties`` are the terms of the sum.

        The k1 estimator of KL(old policy || reference) over the whole response, as in reinforcement learning from human
        feedback (InstructGPT, arXiv 2203.02155). Both sides use the same forward pass over the same rows, because the
        error of a sampler's log-probabilities exceeds a small KL. So a policy equal to the reference gets exactly 0.

        Args:
            rollouts: of this rank, any number.
            old: the weights that sampled them, on ``device``.
            coef: reward units per nat.
            temperature: of the rollouts.
            max_tokens: token budget of one forward pass.
            device: of the policy.
        """
        self._to(device)
        parts = cut(rows_of(rollouts), max_tokens)
        penalties: list[tuple[Row, Tensor]] = []
        sums = dict.fromkeys(map(id, rollouts), 0.0)
        for rows, is_own in in_step(self.policy, parts, device):
            batch = make_micro_batch(rows)
            if not is_own:  # takes part in the gathers of another rank's forward pass
                batch = filler(batch)
            batch = batch.to(device)
            with without_routing(old):
                logprobs = old(batch, temperature)[0]
            with self._as_it_was():
                log_ratios = logprobs - self.policy(batch, temperature)[0]
            if not is_own:
                continue
            log_ratios = torch.where(batch.response_mask, log_ratios, 0.0)
            penalties += zip(rows, (coef * log_ratios).cpu(), strict=True)
            for row, row_sum in zip(rows, log_ratios.double().sum(-1).tolist(), strict=True):
                sums[id(row.rollout)] += row_sum
        store("token_penalties", penalties)
        for rollout in rollouts:
            rollout.kl_penalty = coef * sums[id(rollout)]

    def _to(self, device: torch.device) -> None:
        if not self.adapted:
            super()._to(device)
