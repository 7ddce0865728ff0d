"""Rollout metrics: reward and response statistics over all ranks, from sums and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gspo_lightning.core.distributed import all_names, all_sum, largest
from gspo_lightning.core.tolerance import equal
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.metrics.sums import reduce_sums


def measure_rollouts(
    rollouts: Sequence[Rollout], device: torch.device, seconds: float | None = None
) -> dict[str, float]:
    """Return scalars under their tags (docs/metrics.md); with the ``seconds`` of sampling, its speed, too."""
    sums = _sums_per_response(rollouts)
    sums["reward/mean"] = _sum_and_count(r.reward for r in rollouts)
    for name in all_names(name for r in rollouts for name in r.reward_parts):
        sums[f"reward/parts/{name}"] = _sum_and_count(r.reward_parts.get(name) for r in rollouts)
    for judge in all_names(judge for r in rollouts for judge in r.reward_agreements):
        sums[f"reward/agreement/{judge}"] = _sum_and_count(r.reward_agreements.get(judge) for r in rollouts)
    for name in all_names(name for r in rollouts for name in r.reward_logged):
        sums[f"reward/logged/{name}"] = _sum_and_count(r.reward_logged.get(name) for r in rollouts)
    # like a name, so that ranks agree whether any response had tools
    for tag in all_names("response/malformed_calls" for r in rollouts if r.malformed_calls is not None):
        sums[tag] = _sum_and_count(r.malformed_calls for r in rollouts)

    reduced = reduce_sums(sums, device)
    scalars = {tag: total / max(count, 1) for tag, (total, count) in reduced.items()}
    _, scored = reduced["reward/mean"]
    tokens, responses = reduced["response/length"]
    scalars["reward/missing"] = 1 - scored / responses
    scalars["reward/std"] = _deviation(rollouts, scalars["reward/mean"], scored, device)
    if seconds is not None:
        scalars["throughput/generated_tokens_per_s"] = tokens / max(seconds, 1e-9)
    return scalars


def _sums_per_response(rollouts: Sequence[Rollout]) -> dict[str, tuple[float, float]]:
    """Return sums over this rank's responses of numbers that every response has, with the number of responses."""
    totals = {
        "response/length": sum(r.length for r in rollouts),
        "response/turns": sum(max(1, len(r.turn_ends)) for r in rollouts),
        "response/terminated": sum(not r.truncated and not r.lost for r in rollouts),
        "response/truncated": sum(r.truncated for r in rollouts),
        "response/distinct": _distinct(rollouts),
        "reward/masked": sum(r.masked for r in rollouts),
        "reward/not_applicable": sum("not_applicable" in r.reward_statuses.values() for r in rollouts),
        "reward/model_errors": sum("model_error" in r.reward_statuses.values() for r in rollouts),
        "reward/timeouts": sum("timeout" in r.reward_statuses.values() for r in rollouts),
    }
    return {tag: (total, len(rollouts)) for tag, total in totals.items()}


def _sum_and_count(values: Iterable[float | None]) -> tuple[float, float]:
    """Return the sum and the number of the values that are there."""
    present = [value for value in values if value is not None]
    return sum(present), len(present)


def _deviation(rollouts: Sequence[Rollout], mean: float, count: float, device: torch.device) -> float:
    """Return the standard deviation of rewards around their mean over all ranks; 0 if rewards are equal.

    The mean square less the square of the mean would leave rounding of the size of 1e-8 times the mean.
    """
    squares = sum((r.reward - mean) ** 2 for r in rollouts if r.reward is not None)
    square_sum = float(all_sum(torch.tensor(squares, dtype=torch.float64, device=device)))
    deviation = (square_sum / max(count, 1)) ** 0.5
    return 0.0 if equal(mean, mean + deviation) else deviation


def _distinct(rollouts: Sequence[Rollout]) -> int:
    """Count different responses, prompt by prompt."""
    return len({(r.prompt.id, r.token_ids.cpu().numpy().tobytes()) for r in rollouts})


def measure_staleness(rollouts: Sequence[Rollout], version: int, device: torch.device) -> dict[str, float]:
    """Return how many optimizer steps separate the weights that sampled each token from the present ``version``."""
    tokens = 0
    stale_tokens = 0
    age_sum = 0
    max_age = 0
    for rollout in rollouts:
        versions = rollout.versions
        if versions is None:  # the response is of one piece
            versions = torch.full(rollout.token_ids.shape, rollout.policy_version)
        ages = version - versions
        tokens += len(ages)
        stale_tokens += int((ages > 0).sum())
        age_sum += int(ages.sum())
        max_age = max(max_age, int(ages.max()))
    reduced = reduce_sums({"stale": (stale_tokens, tokens), "age": (age_sum, tokens)}, device)
    stale_total, token_total = reduced["stale"]
    age_total, _ = reduced["age"]
    return {
        "staleness/stale_tokens": stale_total / max(token_total, 1),
        "staleness/mean_age": age_total / max(token_total, 1),
        "staleness/max_age": float(largest(max_age, device)),
    }
