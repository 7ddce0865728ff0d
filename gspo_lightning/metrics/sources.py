"""What is measured of each source of a mixture: of its groups in an iteration, and of its tokens in an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gspo_lightning.distributed import all_sum
from gspo_lightning.types import Rollout

__all__ = ["CLIPPED", "clipped_by_source", "clipped_scalars", "measure_sources", "source_rows"]

CLIPPED = "clipped_by_source"
"""Name of the vector that :func:`clipped_by_source` adds up in."""
_COLUMN = "source"


def measure_sources(
    groups: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    is_dead: Callable[[Sequence[Rollout]], bool] | None,
    device: torch.device,
) -> dict[str, float]:
    """Scalars of each source over all ranks, under their tags (docs/metrics.md); of what is there nothing is left out.

    Args:
        groups: this rank's, scored.
        names: of the sources, the same on every rank.
        is_dead: whether a group teaches nothing; None: every group teaches.
        device: of the collective.
    """
    sums = torch.zeros(len(names), 6, dtype=torch.float64)
    for group in groups:
        known = [r.reward for r in group if r.reward is not None]
        dead = is_dead is not None and is_dead(group)
        sums[names.index(group[0].prompt.columns[_COLUMN])] += torch.tensor(
            [sum(known), len(known), sum(r.length for r in group), len(group), dead, 1], dtype=torch.float64
        )
    found: dict[str, float] = {}
    for name, row in zip(names, all_sum(sums.to(device)).tolist(), strict=True):
        reward, scored, tokens, responses, dead, count = row
        found[f"source/{name}/groups"] = count
        if scored:
            found[f"source/{name}/reward"] = reward / scored
        if count:
            found[f"source/{name}/length"] = tokens / responses
        if count and is_dead is not None:
            found[f"source/{name}/dead_groups"] = dead / count
    return found


def source_rows(rollouts: Sequence[Rollout], names: Sequence[str]) -> Tensor | None:
    """[N, S] bool, which source each row is from; None where there are none."""
    if not names:
        return None
    of = torch.tensor([names.index(r.prompt.columns[_COLUMN]) for r in rollouts])
    return of[:, None] == torch.arange(len(names))


def clipped_by_source(clipped: Tensor, mask: Tensor, sources: Tensor) -> Tensor:
    """[2 S] float64: clipped tokens of each source, then all its tokens.

    Args:
        clipped: [N] or [N, T] bool.
        mask: [N, T] bool.
        sources: [N, S] bool.
    """
    lost = (mask & (clipped if clipped.dim() == 2 else clipped[:, None])).sum(-1)
    counts = torch.stack([lost, mask.sum(-1)]).double()  # [2, N]
    return (counts @ sources.double()).flatten()


def clipped_scalars(counts: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """The share of each source's tokens that lost their gradient, from the sums over an update."""
    pairs = zip(names, counts[: len(names)], counts[len(names) :], strict=True)
    return {f"source/{name}/clipped_tokens": lost / tokens for name, lost, tokens in pairs if tokens}
