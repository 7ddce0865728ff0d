"""Routing metrics: changed routes, balance of the load, confidence of the routers.

They count the response tokens that the policy chose, each at the forwarded token that predicts it, so they do not
depend on the layout or on how a mini-batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.routing.router_recording import RouterRecording
from gspo_lightning.policy.routing.routing import Routing
from gspo_lightning.policy.routing.tokens import gather_routes

LOAD = "expert_load"
"""Name of the vector [L * E]: tokens routed to each expert of each layer."""
Sums = dict[str, tuple[Tensor, Tensor]]


@torch.no_grad()
def routing_sums(recording: RouterRecording, batch: MicroBatch, routing: Routing) -> tuple[Sums, Tensor]:
    """Return sums and counts of a forward pass, and its load [L * E].

    Args:
        recording: of the forward pass of ``batch``.
        batch: its ``routes``, if any, are compared with the choices.
        routing: of the policy.
    """
    places = recording.places
    assert places is not None
    counted = batch.response_mask[places.own_rows, places.steps]
    tokens = places.predicts
    chosen = recording.stacked()[tokens]  # [C, L, k]
    confidence = torch.stack([recording.confidence[i] for i in sorted(recording.confidence)], dim=1)[tokens]
    choices = counted.sum() * routing.layers
    sums = {"router_confidence": (torch.where(counted.unsqueeze(1), confidence, 0.0).sum(), choices)}
    followed = chosen
    if batch.routes is not None:
        recorded = torch.stack(gather_routes(batch.routes, places), dim=1)[tokens]
        changed_choices, changed_experts = share_changed(recorded, chosen, counted)
        sums["changed_choices"] = (changed_choices, choices)
        sums["changed_experts"] = (changed_experts, choices * routing.top_k)
        followed = recorded if routing.replay != "off" else chosen
    # experts of all layers, numbered one layer after another
    expert_index = followed + torch.arange(routing.layers, device=chosen.device).view(1, -1, 1) * routing.experts
    load = torch.zeros(routing.layers * routing.experts, dtype=torch.float64, device=chosen.device)
    counts = counted.double().view(-1, 1, 1).expand_as(expert_index)
    return sums, load.index_add_(0, expert_index.flatten(), counts.flatten())


def share_changed(before: Tensor, after: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Count choices [M, ..., k] whose sets of experts differ, and experts of ``before`` that ``after`` lacks.

    ``counted`` [M] bool leaves tokens out; None counts all.

    >>> one, other = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, 0], [3, 4]])
    >>> [int(n) for n in share_changed(one, other)]
    [1, 1]
    """
    gone = ~(before.unsqueeze(-1) == after.unsqueeze(-2)).any(-1)
    if counted is not None:
        gone = gone & counted.view(-1, *[1] * (gone.dim() - 1))
    return gone.any(-1).sum(), gone.sum()


def routing_scalars(load: Sequence[float], routing: Routing) -> dict[str, float]:
    """Return balance metrics of an update's load [L * E] under their tags; means over layers."""
    violations = []
    entropies = []
    idle = 0
    for layer in range(routing.layers):
        counts = load[layer * routing.experts : (layer + 1) * routing.experts]
        total = sum(counts)
        if not total:
            continue
        shares = [n / total for n in counts]
        violations.append(max(shares) * routing.experts - 1)
        entropies.append(-sum(s * math.log(s) for s in shares if s) / math.log(routing.experts))
        idle += sum(n == 0 for n in counts)
    layers = max(1, len(violations))
    return {
        "moe/load_max_violation": sum(violations) / layers,
        "moe/load_entropy": sum(entropies) / layers,
        "moe/idle_experts": idle / (layers * routing.experts),
    }
