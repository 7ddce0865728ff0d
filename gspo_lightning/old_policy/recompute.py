"""Log-probabilities of a rollout batch under a frozen policy, computed in the training layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import recording, scatter_routes
from gspo_lightning.strategies.sharding import in_step
from gspo_lightning.types import MicroBatch, MiniBatch

__all__ = ["with_logprobs"]


@torch.no_grad()
def with_logprobs(name: str, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
    """Return the mini-batches with log-probabilities [N, T] under a policy in the field ``name`` of every micro-batch.

    They are computed on the policy's device and stored on the micro-batch's. The experts of its tokens are stored, too,
    if the policy's routing is recorded and the rollout brought none, and always under ``R2``.
    """
    if not batches:
        return []
    device, routing = policy.device, policy.routing

    def fill(part: MicroBatch) -> MicroBatch:
        moved = part.to(device)
        if routing is not None and routing.replay == "R2":
            moved = replace(moved, routes=None)  # drop the sampler's
        wanted = routing is not None and (part.routes is None or routing.replay == "R2")
        with recording(routing if wanted else None) as tape:
            found: dict[str, Any] = {name: policy(moved, temperature)[0]}
        if tape is not None and routing is not None and tape.places is not None:
            found["routes"] = scatter_routes(tape.stacked(), tape.places, moved, routing.experts)
        return replace(part, **{key: value.to(part.input_ids.device) for key, value in found.items()})

    filled = [fill(part) for part in in_step(policy, [p for b in batches for p in b.micro_batches], device)]
    taken = iter(filled)
    return [replace(batch, micro_batches=list(islice(taken, len(batch.micro_batches)))) for batch in batches]
