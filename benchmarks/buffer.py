"""What a checkpoint holds of the rollout buffer, in MB a rank: ``python -m benchmarks.buffer``.

64 prompts of 512 tokens with 8 responses of up to 1,024, in 4 mini-batches: everything, which is what was written at
any moment and sent to every rank, and what is written now and sent to rank 0.
"""

from __future__ import annotations

import io
import json
from typing import Any

import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.loader import ExperienceLoader
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch

PROMPTS, GROUP, BATCHES = 64, 8, 4


def roll_out(number: int) -> Experience:
    """A rollout batch; lengths differ, tokens do not matter."""
    groups = []
    for p in range(PROMPTS):
        prompt = Prompt(p, "a prompt", tuple(range(512)))
        group = []
        for k in range(GROUP):
            count = 128 + 128 * ((p + k) % GROUP)
            ids, mask = torch.arange(count), torch.ones(count, dtype=torch.bool)
            group.append(Rollout(prompt, k, ids, torch.zeros(count), mask, FinishReason.STOP, 0, reward=float(k)))
        groups.append(group)
    batches = RolloutBatch.of(groups, mini_batches=BATCHES, max_tokens=16_384, iteration=number, version=0).mini_batches
    return Experience(batches, {"reward/mean": 1.0})


def megabytes(state: dict[str, Any]) -> float:
    """As ``torch.save`` writes it."""
    file = io.BytesIO()
    torch.save(state, file)
    return round(file.getbuffer().nbytes / 1e6, 3)


def main() -> None:
    """One line for each moment."""
    loader = ExperienceLoader(roll_out, BATCHES, 1, seed=0)
    for batch in loader:
        if batch.index:
            loader.mark_trained()  # the one before
        whole = loader.position() | {"experience": loader.experience.state_dict(range(BATCHES), begun=False)}
        moment = f"after {loader.trained} of {BATCHES} updates"
        print(json.dumps({"moment": moment, "everything": megabytes(whole), "now": megabytes(loader.position())}))
    loader.mark_trained()
    print(json.dumps({"moment": "spent", "everything": megabytes(whole), "now": megabytes(loader.position())}))


if __name__ == "__main__":
    main()
