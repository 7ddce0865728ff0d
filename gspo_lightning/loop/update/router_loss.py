"""Routers of mixtures of experts over a whole mini-batch: load-balancing loss, and changed routing choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gspo_lightning.core.distributed import all_sum
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LoadBalance, expert_load, record_routers, routing_sums


@torch.no_grad()
def load_balance(
    coef: float, policy: Policy, micro_batches: Sequence[MicroBatch], temperature: float
) -> LoadBalance | None:
    """Return the input of the load-balancing loss of a mini-batch, from one more forward pass; None with ``coef`` 0.

    Args:
        coef: weight of the loss.
        policy: the trained policy.
        micro_batches: this rank's, on its device; every rank has the same number.
        temperature: sampling temperature of the responses.
    """
    if coef == 0 or policy.routing is None:
        return None
    load = torch.zeros(policy.routing.experts + 1, dtype=torch.float64, device=policy.device)
    for part in micro_batches:
        with record_routers(policy.routing) as recording:
            policy(part, temperature)
        if recording is not None:
            load += expert_load(recording, part, policy.routing, policy.packed)
    return LoadBalance(coef, all_sum(load))


@torch.no_grad()
def changed_routes(part: MicroBatch, policy: Policy, temperature: float) -> float:
    """Return the share of (token, layer) choices of a micro-batch that differ from its ``routes``, over all ranks.

    It takes one more forward pass; call it on every rank. 0 if there is nothing to compare.
    """
    with record_routers(policy.routing) as recording:
        policy(part, temperature)
    if recording is None or policy.routing is None:
        return 0.0
    sums, _ = routing_sums(recording, part, policy.routing)
    zero = torch.zeros((), device=part.input_ids.device)
    rank_changed, rank_count = sums.get("changed_choices", (zero, zero))
    changed, count = all_sum(torch.stack([rank_changed.double(), rank_count.double()])).tolist()
    return changed / count if count else 0.0
