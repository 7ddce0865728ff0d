"""Rollouts whose log-probabilities are not the trainer's: what an inference engine of another precision does.

Named in a grid: ``data.rollouts: {class_path: experiments.lab.noise.NoisySampler, init_args: {nats: 1e-3}}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from gspo_lightning.core.randomness import stream, uniforms
from gspo_lightning.core.types import Prompt, Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import Decoder

__all__ = ["EngineSampler", "NoisySampler", "RoundedSampler", "engine_logits"]


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


class EngineSampler(GroupedSampler):
    """Samples from a policy with an engine's errors, and reports that policy's log-probabilities.

    Errors have the shape measured between vLLM in bfloat16 and the trainer in float32 (docs/real_model.md); see
    :func:`engine_logits`. Greedy decoding is exact.

    Args:
        nats: size of the errors on tokens that the policy is not sure of; 0.15 is that of bfloat16.
        bias: mean of the errors, as a share of ``nats``: rare tokens become more likely.
        seed: of the errors.
    """

    def __init__(self, nats: float, bias: float = 0.25, seed: int = 0) -> None:
        super().__init__()
        self.nats, self.bias, self.noise_seed = nats, bias, seed
        self._base: int | None = None

    @override
    def generate(self, policy: Policy, prompts: Sequence[Prompt], **how: Any) -> list[list[Rollout]]:
        self._base = stream(self.noise_seed, how.get("version", 0)) if how["sampling"].temperature > 0 else None
        return super().generate(policy, prompts, **how)

    @override
    def local(self) -> GroupedSampler:
        return GroupedSampler()

    @override
    def _decoder(self, policy: Policy) -> Decoder:
        exact = super()._decoder(policy)
        return exact if self._base is None else _EngineDecoder(exact, self.nats, self.bias, self._base)


class _EngineDecoder(Decoder):
    """Decoder whose logits have an engine's errors."""

    def __init__(self, exact: Decoder, nats: float, bias: float, base: int) -> None:
        super().__init__(exact.policy)
        self.exact, self.may_grow, self.errors = exact, exact.may_grow, (nats, bias, base)

    @override
    def add(self, prefill: Prefill) -> Tensor:
        return engine_logits(self.exact.add(prefill), *self.errors)

    @override
    def keep(self, rows: Tensor) -> None:
        self.exact.keep(rows)

    @override
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return engine_logits(self.exact.step(tokens, positions), *self.errors)


def engine_logits(logits: Tensor, nats: float, bias: float, base: int) -> Tensor:
    """Return logits [rows, V] with errors of mean ``(1 - p) nats bias`` and standard deviation ``(1 - p) nats``.

    The factor of 1 - p bounds the error of a token of probability p (arXiv 2512.23087): a token that is all but certain
    has next to none. The rest is Laplace's distribution, drawn by a hash of the logits: an engine makes the same error
    in the same context, so errors do not average out over the responses of a group.
    """
    scores = logits.float()
    bits = scores.contiguous().view(torch.int32).long()
    uniform = uniforms(base, bits, torch.arange(scores.shape[-1], device=scores.device))
    away = uniform - 0.5
    laplace = -away.sign() * torch.log1p(-2 * away.abs().clamp(max=0.5 - 1e-12)) * 0.5**0.5
    errors: Tensor = nats * (1 - scores.softmax(-1)) * (laplace + bias)
    return scores + errors.to(scores)
