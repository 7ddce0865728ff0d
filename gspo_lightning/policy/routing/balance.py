"""Load-balancing loss of routers (Switch Transformer, arXiv 2101.03961, equations 4 to 6; Qwen3-MoE's form).

``E * sum_e f_e P_e`` over E experts: ``f_e`` is the frequency with which tokens choose expert e, ``P_e`` its mean
probability, both means over the tokens of a mini-batch and over layers. Only ``P_e`` has a gradient, and it is a sum
over tokens: with ``f_e`` of the whole mini-batch known beforehand, the shares of micro-batches and ranks add up to the
exact loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.routing.router_recording import RouterRecording
from gspo_lightning.policy.routing.routing import Routing


@dataclass(frozen=True, slots=True)
class LoadBalance:
    """Inputs of a micro-batch's load-balancing loss that belong to its mini-batch."""

    coef: float
    """Weight of the loss beside that of the objective, > 0."""
    load: Tensor
    """[E + 1] from :func:`expert_load`, over the whole mini-batch and all ranks."""

    def share(
        self, recording: RouterRecording, batch: MicroBatch, routing: Routing, packed: bool
    ) -> tuple[Tensor, Tensor]:
        """Return a micro-batch's share of the loss before ``coef``, with gradient, and its share of the tokens.

        Args:
            recording: of its forward pass, with scores.
            batch: N rows.
            routing: of the policy.
            packed: True if rows of one prompt shared it in that pass.
        """
        weights = _weights(recording, batch, packed)
        scores = list(recording.scores.values())
        logits = bool((scores[0].detach() < 0).any())
        per_layer = [(_probabilities(layer, logits) * weights.unsqueeze(1)).sum(0) for layer in scores]
        total_E = torch.stack(per_layer).sum(0)
        chosen_E = self.load[:-1].to(total_E.dtype)
        pairs = self.load[-1].to(total_E.dtype)  # (token, layer), of the mini-batch
        # E sum_e f_e P_e, where both means are sums over the same number of pairs
        loss = routing.experts * (chosen_E * total_E).sum() / pairs**2
        return loss, weights.sum() * len(scores) / pairs


@torch.no_grad()
def expert_load(recording: RouterRecording, batch: MicroBatch, routing: Routing, packed: bool) -> Tensor:
    """Return [E + 1] float64: the choices of each expert over all layers, then the number of (token, layer) pairs.

    Counts every forwarded token of every row, a shared prompt once for each of its rows.
    """
    weights = _weights(recording, batch, packed).double()
    load = torch.zeros(routing.experts + 1, dtype=torch.float64, device=weights.device)
    for chosen in recording.chosen.values():
        load.index_add_(0, chosen.flatten(), weights.repeat_interleave(chosen.shape[1]))
        load[-1] += weights.sum()
    return load


def _weights(recording: RouterRecording, batch: MicroBatch, packed: bool) -> Tensor:
    """Return [M] float32: the number of rows that a forwarded token stands for; 0 for padding and fillers."""
    places = recording.places
    assert places is not None
    rows = places.rows
    positions = places.positions
    weights = (positions < (batch.lengths - 1)[rows]).float() * batch.weight
    if packed and batch.prompt_index is not None:
        sharing = (batch.prompt_index.unsqueeze(0) == batch.prompt_index.unsqueeze(1)).sum(1)
        weights = torch.where(positions < batch.prompt_lengths[rows], sharing[rows] * weights, weights)
    return weights


def _probabilities(scores: Tensor, logits: bool) -> Tensor:
    """Return probabilities [M, E] float32: the softmax of logits; other scores (positive) divided by their sum."""
    wide = scores.float()
    return torch.softmax(wide, dim=-1) if logits else wide / wide.sum(-1, keepdim=True)
