"""Source metrics of a mixture: the groups of each source in an iteration, and its tokens in an update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_sum
from gspo_lightning.core.types import Rollout

CLIPPED = "clipped_by_source"
"""Name of the vector that sums the results of :func:`clipped_by_source`."""
_COLUMN = "source"


def measure_sources(
    groups: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    dead: Sequence[bool] | None,
    device: torch.device,
) -> dict[str, float]:
    """Return scalars of each source over all ranks, under their tags (docs/metrics.md); missing ones are left out.

    Args:
        groups: this rank's groups, scored.
        names: names of the sources, the same on every rank.
        dead: whether each group gives no signal; None: every group gives one.
        device: for the collective.
    """
    sums = torch.zeros(len(names), 6, dtype=torch.float64)  # the six columns that are unpacked below
    for i, group in enumerate(groups):
        source = names.index(group[0].prompt.columns[_COLUMN])
        rewards = [r.reward for r in group if r.reward is not None]
        tokens = sum(r.length for r in group)
        is_dead = dead is not None and dead[i]
        row = [sum(rewards), len(rewards), tokens, len(group), is_dead, 1]
        sums[source] += torch.tensor(row, dtype=torch.float64)
    scalars: dict[str, float] = {}
    for name, row in zip(names, all_sum(sums.to(device)).tolist(), strict=True):
        reward_sum, scored, tokens, responses, dead_groups, group_count = row
        scalars[f"source/{name}/groups"] = group_count
        if scored:
            scalars[f"source/{name}/reward"] = reward_sum / scored
        if group_count:
            scalars[f"source/{name}/length"] = tokens / responses
        if group_count and dead is not None:
            scalars[f"source/{name}/dead_groups"] = dead_groups / group_count
    return scalars


def clipped_by_source(clipped: Tensor, mask: Tensor, sources: Tensor) -> Tensor:
    """Count clipped tokens of each source, then all its tokens: [2 S] float64.

    Args:
        clipped: [N] or [N, T] bool.
        mask: [N, T] bool.
        sources: [N, S] bool.
    """
    clipped_tokens = mask & (clipped if clipped.dim() == 2 else clipped[:, None])
    counts = torch.stack([clipped_tokens.sum(-1), mask.sum(-1)]).double()  # [2, N]
    return (counts @ sources.double()).flatten()


def clipped_scalars(counts: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Return the share of each source's tokens that lost their gradient, from the sums over an update."""
    clipped_tokens = counts[: len(names)]
    all_tokens = counts[len(names) :]
    scalars = {}
    for name, clipped, tokens in zip(names, clipped_tokens, all_tokens, strict=True):
        if tokens:
            scalars[f"source/{name}/clipped_tokens"] = clipped / tokens
    return scalars
