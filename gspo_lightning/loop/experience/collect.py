"""Experience of one iteration: mini-batches to train on, and measurements."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gspo_lightning.core.distributed import all_gathered
from gspo_lightning.core.errors import UserError, counted
from gspo_lightning.core.pictures import read_media, written_media
from gspo_lightning.core.types import MiniBatch, Rollout
from gspo_lightning.loop.metrics.responses import Distributions, distribution_scalars, extremes, measure_distributions
from gspo_lightning.loop.metrics.rollouts import measure_rollouts
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch


@dataclass(slots=True)
class Experience:
    """Result of one rollout batch: mini-batches to train on, metrics of the iteration, examples to show."""

    mini_batches: Sequence[MiniBatch | None]
    """None for a mini-batch that a checkpoint left out because it is no longer needed."""
    metrics: dict[str, float]
    examples: list[dict[str, Any]] = field(default_factory=list)
    rewards: dict[str, list[Any]] = field(default_factory=dict)
    """``<prompt>/<sample>``, and ``/<row>`` of several -> [hash of its token ids, reward or None], for dumps."""
    distributions: Distributions = field(default_factory=dict)
    """Name -> one value per response of all ranks: length, reward, advantage ... (histograms)."""
    recorded: list[dict[str, Any]] = field(default_factory=list)
    """Rows of this rank whose tokens are recorded (:func:`gspo_lightning.loop.experience.chosen.chosen_rows`)."""

    def state_dict(self, to_come: Container[int], begun: bool) -> dict[str, Any]:
        """Return what is still needed, as tensors and primitives only.

        Args:
            to_come: the mini-batches that will be trained on.
            begun: an update was made, which logged the examples and distributions.
        """
        batches, examples = enumerate(self.mini_batches), [] if begun else self.examples
        return {
            "mini_batches": [b.state_dict() if b is not None and i in to_come else None for i, b in batches],
            "metrics": dict(self.metrics),
            "examples": [{k: v for k, v in e.items() if k != "media"} for e in examples],
            "media": written_media([e.get("media", ()) for e in examples]),
            "rewards": dict(self.rewards),
            "distributions": {} if begun else dict(self.distributions),
            "recorded": json.dumps([r for r in self.recorded if r["mini_batch"] in to_come], default=str),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Experience:
        """Restore the result of :meth:`state_dict`."""
        media = read_media(state.get("media")) or [()] * len(state["examples"])
        shown = [{**e, **({"media": m} if m else {})} for e, m in zip(state["examples"], media, strict=True)]
        return cls(
            [None if b is None else MiniBatch.from_state_dict(b) for b in state["mini_batches"]],
            dict(state["metrics"]),
            shown,
            dict(state.get("rewards", {})),
            dict(state.get("distributions", {})),
            json.loads(state.get("recorded", "[]")),
        )


def measure_rewards(
    rollouts: Sequence[Rollout], iteration: int, device: torch.device, seconds: float | None = None
) -> dict[str, float]:
    """Return statistics of rewards and responses over all ranks, under their tags; ``seconds`` are those of sampling.

    Raises:
        UserError: no response of any rank has a reward.
    """
    metrics = measure_rollouts(rollouts, device, seconds)
    if metrics["reward/missing"] == 1:
        reasons = counted(all_gathered(r.lost or r.missing for r in rollouts))
        raise UserError(
            "data.rewards",
            f"no response of iteration {iteration} has a reward, so there is nothing to learn from: {reasons}",
            fix="correct the reward or what it depends on, then go on with --ckpt_path last",
        )
    return metrics


def collect(
    batch: RolloutBatch,
    metrics: Mapping[str, float],
    *,
    device: torch.device,
    distributions: bool = True,
    examples: int = 8,
) -> Experience:
    """Build the experience of an iteration.

    Args:
        batch: this rank's rollouts, with rewards and advantages, and their mini-batches.
        metrics: of the iteration so far.
        device: for the collectives.
        distributions: also keep the measurements of each response.
        examples: number of responses to keep as examples.
    """
    rollouts = batch.rollouts
    spread = measure_distributions(rollouts, device) if distributions else {}
    scalars, special = (distribution_scalars(spread), extremes(rollouts)) if distributions else ({}, {})
    shown = [_example(r) for g in batch.groups for r in g[:2]][:examples]
    shown += [_example(r, name) for name, r in special.items()]
    return Experience(
        batch.mini_batches,
        {
            **metrics,
            **scalars,
            "data/iteration": float(batch.mini_batches[0].iteration),
        },
        shown,
        batch.fingerprints(),
        spread,
    )


def _example(rollout: Rollout, shown_as: str = "sample") -> dict[str, Any]:
    return {
        "shown_as": shown_as,
        "prompt": rollout.prompt.text,
        "completion": rollout.transcript,
        "answer": str(rollout.prompt.columns.get("answer", "")),
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "tokens": rollout.length,
        "finish": str(rollout.finish_reason),
        **({"media": rollout.prompt.media} if rollout.prompt.media else {}),
    }
