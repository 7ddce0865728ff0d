"""Convert routes between rows with positions and the forwarded tokens of any layout.

Routes of a micro-batch are [N, S - 1, L, k]: the k experts of every forwarded position of every row, in each of L
layers with routers. A prompt that several rows share has the same routes in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.types import MicroBatch


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Places of M forwarded tokens (``rows`` and ``positions``, [M]) and of the response tokens that they predict.

    Each response token has ``predicts``, the forwarded token that predicts it, and ``own_rows`` and ``steps``, its
    place in a [N, T] tensor.
    """

    rows: Tensor
    positions: Tensor
    predicts: Tensor
    own_rows: Tensor
    steps: Tensor


def index_dtype(experts: int) -> torch.dtype:
    """Return the smallest integer dtype that can number the experts, since routes are large."""
    return torch.uint8 if experts <= 256 else torch.int16


def gather_routes(routes: Tensor, places: TokenPlaces) -> list[Tensor]:
    """Gather the routes [N, >= S - 1, L, k] of forwarded tokens, as L tensors [M, k] int64."""
    return list(routes[places.rows, places.positions].to(torch.int64).unbind(1))


def scatter_routes(chosen: Tensor, places: TokenPlaces, batch: MicroBatch, experts: int) -> Tensor:
    """Scatter choices [M, L, k] of forwarded tokens to [N, S - 1, L, k]; padding has the first k experts.

    Rows with the same ``prompt_index`` share the choices of the one whose prompt was forwarded.
    """
    layers, k = chosen.shape[1:]
    width = batch.input_ids.shape[1] - 1
    routes = torch.arange(k, device=chosen.device).expand(batch.input_ids.shape[0], width, layers, k).clone()
    routes[places.rows, places.positions] = chosen
    if batch.prompt_index is not None:
        steps = torch.arange(width, device=chosen.device)
        first = (batch.prompt_index.unsqueeze(0) == batch.prompt_index.unsqueeze(1)).long().argmax(1)
        shared = (steps < batch.prompt_lengths.unsqueeze(1))[..., None, None]
        routes = torch.where(shared, routes[first], routes)
    return routes.to(index_dtype(experts))
