"""Rollouts whose log-probabilities are not the trainer's: what an inference engine of another precision does.

Named in a grid: ``data.rollouts: {class_path: experiments.lab.noise.NoisySampler, init_args: {nats: 1e-3}}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.nn.functional import logsigmoid

from gspo_lightning.policy.policy import Policy
from gspo_lightning.randomness import stream
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.types import Prompt, Rollout

__all__ = ["NoisySampler", "RoundedSampler"]


class NoisySampler(GroupedSampler):
    """Reports log-probabilities with Gaussian noise on the log-odds of each token; the tokens are the policy's own.

    A token of probability p gets noise of ``(1 - p) nats`` on its log-probability: as with an engine that rounds
    logits, a token that is all but certain gets next to none, and no probability exceeds 1.

    Args:
        nats: standard deviation per token, nats of log-odds.
        kind: ``iid``: every token of every response its own; ``position``: one draw per position of an iteration, the
            same in all responses, so that it does not average out over a sequence as fast.
        seed: of the noise.
    """

    def __init__(self, nats: float, kind: Literal["iid", "position"] = "iid", seed: int = 0) -> None:
        super().__init__()
        self.nats, self.kind, self.noise_seed = nats, kind, seed

    def generate(self, policy: Policy, prompts: Sequence[Prompt], **how: Any) -> list[list[Rollout]]:
        """See :meth:`GroupedSampler.generate`."""
        groups = super().generate(policy, prompts, **how)
        return [[self._noisy(rollout, how.get("version", 0)) for rollout in group] for group in groups]

    def local(self) -> GroupedSampler:
        """Without noise: the check before the first rollout would refuse it, which is its purpose."""
        return GroupedSampler()

    def _noisy(self, rollout: Rollout, version: int) -> Rollout:
        assert rollout.logprobs is not None
        keys = (rollout.prompt.id, rollout.sample) if self.kind == "iid" else ()
        generator = torch.Generator().manual_seed(stream(self.noise_seed, version, *keys) % (1 << 63))
        noise = torch.randn(len(rollout.logprobs), generator=generator, dtype=torch.float64) * self.nats
        exact = rollout.logprobs.double()
        log_odds = exact - torch.log(-torch.expm1(exact))
        return dataclasses.replace(rollout, logprobs=logsigmoid(log_odds + noise).to(rollout.logprobs))


class RoundedSampler(GroupedSampler):
    """Samples, and reports, by forward passes under autocast, beside training in float32.

    Args:
        dtype: of autocast.
    """

    def __init__(self, dtype: Literal["bfloat16", "float16"]) -> None:
        super().__init__(decode="model")
        self.dtype: torch.dtype = getattr(torch, dtype)

    def generate(self, policy: Policy, prompts: Sequence[Prompt], **how: Any) -> list[list[Rollout]]:
        """See :meth:`GroupedSampler.generate`."""
        with torch.autocast(policy.device.type, self.dtype):
            return super().generate(policy, prompts, **how)

    def local(self) -> GroupedSampler:
        """In float32: see :class:`NoisySampler`."""
        return GroupedSampler()
