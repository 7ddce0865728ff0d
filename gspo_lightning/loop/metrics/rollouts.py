"""Rollout metrics: reward and response statistics over all ranks, from sums and counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gspo_lightning.core.distributed import all_names, all_sum, largest
from gspo_lightning.core.tolerance import equal
from gspo_lightning.core.types import Rollout


def measure_rollouts(
    rollouts: Sequence[Rollout], device: torch.device, seconds: float | None = None
) -> dict[str, float]:
    """Return scalars under their tags (docs/metrics.md); with the ``seconds`` of sampling, its speed, too."""
    parts = all_names(name for r in rollouts for name in r.reward_parts)
    sums: list[float] = []
    for name in (None, *parts):
        known = [v for r in rollouts if (v := r.reward if name is None else r.reward_parts.get(name)) is not None]
        sums += [sum(known), len(known)]
    judges = all_names(name for r in rollouts for name in r.reward_agreements)
    for name in judges:
        said = [r.reward_agreements[name] for r in rollouts if name in r.reward_agreements]
        sums += [sum(said), len(said)]
    logged = all_names(name for r in rollouts for name in r.reward_logged)
    for name in logged:
        numbers = [r.reward_logged[name] for r in rollouts if name in r.reward_logged]
        sums += [sum(numbers), len(numbers)]
    tools = all_names("response/malformed_calls" for r in rollouts if r.malformed_calls is not None)
    for _ in tools:
        unread = [r.malformed_calls for r in rollouts if r.malformed_calls is not None]
        sums += [sum(unread), len(unread)]
    counts = {
        "response/length": sum(r.length for r in rollouts),
        "response/turns": sum(max(1, len(r.turn_ends)) for r in rollouts),
        "response/terminated": sum(not r.truncated and not r.lost for r in rollouts),
        "response/truncated": sum(r.truncated for r in rollouts),
        "response/distinct": sum(_distinct(rollouts)),
        "reward/masked": sum(r.masked for r in rollouts),
        "reward/not_applicable": sum("not_applicable" in r.reward_statuses.values() for r in rollouts),
        "reward/model_errors": sum("model_error" in r.reward_statuses.values() for r in rollouts),
        "reward/timeouts": sum("timeout" in r.reward_statuses.values() for r in rollouts),
    }
    packed = torch.tensor([*sums, *counts.values(), len(rollouts)], dtype=torch.float64, device=device)
    total = all_sum(packed).tolist()
    responses = total[-1]
    scalars = {tag: total[len(sums) + i] / responses for i, tag in enumerate(counts)}
    if seconds is not None:
        scalars["throughput/generated_tokens_per_s"] = total[len(sums)] / max(seconds, 1e-9)
    scalars["reward/missing"] = 1 - total[1] / responses
    for i, tag in enumerate(["reward/mean", *(f"reward/parts/{p}" for p in parts)]):
        value, known_count = total[2 * i : 2 * i + 2]
        scalars[tag] = value / max(known_count, 1)
        if tag == "reward/mean":
            scalars["reward/std"] = _deviation(rollouts, scalars[tag], known_count, device)
    shares = [*(f"reward/agreement/{name}" for name in judges), *(f"reward/logged/{name}" for name in logged), *tools]
    for i, tag in enumerate(shares):
        value, known_count = total[2 * (1 + len(parts)) + 2 * i :][:2]
        scalars[tag] = value / max(known_count, 1)
    return scalars


def _deviation(rollouts: Sequence[Rollout], mean: float, count: float, device: torch.device) -> float:
    """Return the standard deviation of rewards around their mean over all ranks; 0 if rewards are equal.

    The mean square less the square of the mean would leave rounding of the size of 1e-8 times the mean.
    """
    squares = sum((r.reward - mean) ** 2 for r in rollouts if r.reward is not None)
    total = float(all_sum(torch.tensor(squares, dtype=torch.float64, device=device)))
    deviation = (total / max(count, 1)) ** 0.5
    return 0.0 if equal(mean, mean + deviation) else deviation


def _distinct(rollouts: Sequence[Rollout]) -> list[bool]:
    """Return for each response whether it is the first of its kind to its prompt."""
    seen: set[tuple[int, bytes]] = set()
    new = []
    for r in rollouts:
        key = (r.prompt.id, r.token_ids.cpu().numpy().tobytes())
        new.append(key not in seen)
        seen.add(key)
    return new


def measure_staleness(rollouts: Sequence[Rollout], version: int, device: torch.device) -> dict[str, float]:
    """Return how many optimizer steps separate the weights that sampled each token from the present ``version``."""
    total = stale = steps = oldest = 0
    for rollout in rollouts:
        ages = version - (rollout.versions if rollout.versions is not None else torch.tensor([rollout.policy_version]))
        ages = ages.expand(len(rollout.token_ids))
        total, stale, steps = total + len(ages), stale + int((ages > 0).sum()), steps + int(ages.sum())
        oldest = max(oldest, int(ages.max()))
    sums = all_sum(torch.tensor([total, stale, steps], dtype=torch.float64, device=device)).tolist()
    return {
        "staleness/stale_tokens": sums[1] / max(sums[0], 1),
        "staleness/mean_age": sums[2] / max(sums[0], 1),
        "staleness/max_age": float(largest(oldest, device)),
    }
