"""A plug-in for tests: the built-in sampler with the log-probabilities of an engine that is off."""

from __future__ import annotations

import math
from typing import Any

import torch
from typing_extensions import override

from gspo_lightning.core.types import Rollout
from gspo_lightning.rollouts import GroupedSampler


class Distorted(GroupedSampler):
    """A sampler whose log-probabilities are off by up to .6 nats, by response and by position."""

    @override
    def generate(self, *arguments: Any, **more: Any) -> list[list[Rollout]]:
        groups = super().generate(*arguments, **more)
        for group in groups:
            for k, rollout in enumerate(group):
                assert rollout.logprobs is not None
                shift = torch.cos(torch.arange(len(rollout.logprobs))) * 0.1 + 0.5 * math.sin(3.0 * k + 1.0)
                rollout.logprobs = rollout.logprobs - shift.to(rollout.logprobs)
        return groups
