"""A plug-in: the shorter a step, the better."""

from __future__ import annotations

from collections.abc import Sequence

from gspo_lightning.rewards import Sample, Score, StepReward


class BriefSteps(StepReward):
    """0.9 for a step of one character, 0.8 for one of two ..."""

    def score_steps(self, steps: Sequence[str], sample: Sample) -> Sequence[float]:
        return [1.0 - len(step) / 10 for step in steps]


class SomeSteps(BriefSteps):
    """Finds no step in the responses to most prompts: whole micro-batches are without."""

    def score(self, sample: Sample) -> Score:
        return super().score(sample) if sum(map(ord, sample.prompt)) % 4 == 0 else Score.model_error("no steps")
