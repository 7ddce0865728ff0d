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
    sums = torch.zeros(len(names), 6, dtype=torch.float64)
    for i, group in enumerate(groups):
        known = [r.reward for r in group if r.reward is not None]
        sums[names.index(group[0].prompt.columns[_COLUMN])] += torch.tensor(
            [sum(known), len(known), sum(r.length for r in group), len(group), dead is not None and dead[i], 1],
            dtype=torch.float64,
        )
    found: dict[str, float] = {}
    for name, row in zip(names, all_sum(sums.to(device)).tolist(), strict=True):
        reward, scored, tokens, responses, silent, count = row
        found[f"source/{name}/groups"] = count
        if scored:
            found[f"source/{name}/reward"] = reward / scored
        if count:
            found[f"source/{name}/length"] = tokens / responses
        if count and dead is not None:
            found[f"source/{name}/dead_groups"] = silent / count
    return found


def clipped_by_source(clipped: Tensor, mask: Tensor, sources: Tensor) -> Tensor:
    """Count clipped tokens of each source, then all its tokens: [2 S] float64.

    Args:
        clipped: [N] or [N, T] bool.
        mask: [N, T] bool.
        sources: [N, S] bool.
    """
    lost = (mask & (clipped if clipped.dim() == 2 else clipped[:, None])).sum(-1)
    counts = torch.stack([lost, mask.sum(-1)]).double()  # [2, N]
    return (counts @ sources.double()).flatten()


def clipped_scalars(counts: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Return the share of each source's tokens that lost their gradient, from the sums over an update."""
    pairs = zip(names, counts[: len(names)], counts[len(names) :], strict=True)
    return {f"source/{name}/clipped_tokens": lost / tokens for name, lost, tokens in pairs if tokens}
