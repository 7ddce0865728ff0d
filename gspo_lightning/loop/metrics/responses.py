"""Response metrics: distributions of lengths, rewards, advantages and repetition in an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gspo_lightning.core.distributed import gather_rows
from gspo_lightning.core.types import Rollout

Distributions = dict[str, list[float]]
"""Name -> one value per response of all ranks: ``length``, ``reward`` (NaN: missing), ``advantage``, ``repetition``."""

GRAM = 4
"""Tokens in a row that count as a repetition; shorter ones repeat in any text."""
_BASE = np.int64(1_000_003)


def repetition(token_ids: NDArray[np.int64]) -> float:
    """Return the share of 4-grams [T - 3] of a response [T] that occurred in it before; 0 if it is too short.

    >>> repetition(np.array([5, 6, 7, 8] * 3))  # 9 of them, 4 different ones
    0.5555555555555556
    """
    count = len(token_ids) - GRAM + 1
    if count < 2:
        return 0.0
    hashed = np.zeros(count, dtype=np.int64)
    for place in range(GRAM):  # a polynomial that overflows on purpose: 64 bits keep different 4-grams apart
        hashed = hashed * _BASE + token_ids[place : place + count]
    return 1 - len(np.unique(hashed)) / count


def measure_distributions(rollouts: Sequence[Rollout], device: torch.device) -> Distributions:
    """Return the values of every response over all ranks; each rank must hold as many responses."""
    columns = {
        "length": [float(r.length) for r in rollouts],
        "reward": [float("nan") if r.reward is None else float(r.reward) for r in rollouts],
        "advantage": [float(r.advantage) for r in rollouts],
        "repetition": [repetition(r.own_ids.cpu().numpy()) for r in rollouts],
    }
    packed = torch.tensor(list(columns.values()), dtype=torch.float64, device=device)  # [4, N]
    gathered = gather_rows(packed.flatten()).reshape(-1, *packed.shape)  # [world, 4, N]
    values = gathered.transpose(0, 1).flatten(1).tolist()  # [4, world * N]
    return dict(zip(columns, values, strict=True))


def distribution_scalars(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return percentiles, extremes and means under their tags (docs/metrics.md), except those without a value."""
    length = np.asarray(values["length"])
    advantage = np.asarray(values["advantage"])
    reward = np.asarray(values["reward"])
    p05, p50, p95 = np.percentile(length, [5, 50, 95])
    scalars = {
        "response/length_p05": p05,
        "response/length_p50": p50,
        "response/length_p95": p95,
        "response/length_max": length.max(),
        "response/repetition": np.mean(values["repetition"]),
    }
    for sign, selected in (("positive", advantage > 0), ("negative", advantage < 0)):
        if selected.any():
            scalars[f"response/length_{sign}"] = length[selected].mean()
    present = reward[~np.isnan(reward)]
    if present.size:
        scalars["reward/min"] = present.min()
        scalars["reward/max"] = present.max()
    return {tag: float(value) for tag, value in scalars.items()}


def extremes(rollouts: Sequence[Rollout]) -> dict[str, Rollout]:
    """Return the extreme responses of this rank, by what makes them extreme."""
    return {
        "largest advantage": max(rollouts, key=lambda r: r.advantage),
        "smallest advantage": min(rollouts, key=lambda r: r.advantage),
        "longest": max(rollouts, key=lambda r: r.length),
        "most repetitive": max(rollouts, key=lambda r: repetition(r.own_ids.cpu().numpy())),
    }
