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
        mini_batches = [
            None if batch is None or index not in to_come else batch.state_dict()
            for index, batch in enumerate(self.mini_batches)
        ]
        examples = [] if begun else self.examples
        recorded = [row for row in self.recorded if row["mini_batch"] in to_come]
        return {
            "mini_batches": mini_batches,
            "metrics": dict(self.metrics),
            "examples": [{k: v for k, v in example.items() if k != "media"} for example in examples],
            "media": written_media([example.get("media", ()) for example in examples]),
            "rewards": dict(self.rewards),
            "distributions": {} if begun else dict(self.distributions),
            "recorded": json.dumps(recorded, default=str),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Experience:
        """Restore the result of :meth:`state_dict`."""
        media = read_media(state.get("media")) or [()] * len(state["examples"])
        examples = []
        for example, pictures in zip(state["examples"], media, strict=True):
            examples.append({**example, "media": pictures} if pictures else dict(example))
        return cls(
            [None if b is None else MiniBatch.from_state_dict(b) for b in state["mini_batches"]],
            dict(state["metrics"]),
            examples,
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
    first_two = [rollout for group in batch.groups for rollout in group[:2]]
    example_rows = [_example(rollout) for rollout in first_two[:examples]]
    values: Distributions = {}
    all_metrics = dict(metrics)
    if distributions:
        values = measure_distributions(rollouts, device)
        all_metrics |= distribution_scalars(values)
        example_rows += [_example(rollout, name) for name, rollout in extremes(rollouts).items()]
    all_metrics["data/iteration"] = float(batch.mini_batches[0].iteration)
    return Experience(batch.mini_batches, all_metrics, example_rows, batch.fingerprints(), values)


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
