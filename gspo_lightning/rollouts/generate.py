"""Rollouts through transformers' own ``generate``: slower, for models the grouped sampler does not know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from gspo_lightning.policy import Policy
from gspo_lightning.rollouts.base import Draws, Progress, RolloutSource, finish, has_ended, sample_tokens
from gspo_lightning.types import Prompt, Rollout, SamplingParams

__all__ = ["TransformersGenerate"]


class TransformersGenerate(RolloutSource):
    """Responses by ``model.generate``, with this package's draws: in float32 the same tokens as the grouped sampler's.

    Args:
        batch_size: responses generated at the same time.
    """

    def __init__(self, batch_size: int = 256) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size

    @torch.no_grad()
    def generate(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        progress: Progress | None = None,
    ) -> list[list[Rollout]]:
        """See :meth:`RolloutSource.generate`."""
        rows = [(prompt, k) for prompt in prompts for k in range(group_size)]
        done: list[Rollout] = []
        for start in range(0, len(rows), self.batch_size):
            done += self._batch(policy, rows[start : start + self.batch_size], sampling, draws, version)
            if progress is not None:
                progress(len(done), len(rows))
        return [done[i * group_size : (i + 1) * group_size] for i in range(len(prompts))]

    @staticmethod
    def _batch(
        policy: Policy, rows: Sequence[tuple[Prompt, int]], sampling: SamplingParams, draws: Draws, version: int
    ) -> list[Rollout]:
        width = max(len(p.token_ids) for p, _ in rows)
        ids = torch.tensor([[0] * (width - len(p.token_ids)) + list(p.token_ids) for p, _ in rows])
        mask = torch.tensor([[0] * (width - len(p.token_ids)) + [1] * len(p.token_ids) for p, _ in rows])
        chooser, stopper = _Choose(rows, sampling, draws, width), _Stop(policy, sampling, width, len(rows))
        config = GenerationConfig(
            max_new_tokens=sampling.max_response_tokens, do_sample=False, pad_token_id=policy.tokenizer.pad_token_id
        )
        with _no_generation_config(policy.model):
            out = policy.model.generate(
                input_ids=ids.to(policy.device),
                attention_mask=mask.to(policy.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([chooser]),
                stopping_criteria=StoppingCriteriaList([stopper]),
            )[:, width:].cpu()
        logprobs = torch.stack(chooser.logprobs, dim=1)
        ends = stopper.counts.tolist()
        counts = [end or out.shape[1] for end in ends]
        return [
            finish(
                prompt, k, out[i, : counts[i]], logprobs[i, : counts[i]],
                stopped=ends[i] > 0, version=version, policy=policy,
            )
            for i, (prompt, k) in enumerate(rows)
        ]  # fmt: skip


@contextlib.contextmanager
def _no_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's own generation config.

    ``generate`` fills every unset field from it, and its penalties, beams or end tokens would change the policy.
    """
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class _Choose(LogitsProcessor):
    """Makes the draw itself and leaves ``generate`` no choice: all other tokens get -inf."""

    def __init__(self, rows: Sequence[tuple[Prompt, int]], sampling: SamplingParams, draws: Draws, width: int) -> None:
        self.prompt_ids = torch.tensor([p.id for p, _ in rows])
        self.samples = torch.tensor([k for _, k in rows])
        self.sampling, self.draws, self.width = sampling, draws, width
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        uniform = self.draws.uniform(self.prompt_ids, self.samples, input_ids.shape[1] - self.width)
        tokens, logprobs = sample_tokens(scores, uniform, self.sampling)
        self.logprobs.append(logprobs.cpu())
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens.unsqueeze(-1), 0.0)


class _Stop(StoppingCriteria):
    """Ends rows by the rule that every source shares, and remembers where (``counts`` [rows], 0: not ended)."""

    def __init__(self, policy: Policy, sampling: SamplingParams, width: int, rows: int) -> None:
        self.policy, self.sampling, self.width = policy, sampling, width
        self.counts = torch.zeros(rows, dtype=torch.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        responses = input_ids[:, self.width :]  # the rule never looks at the prompt
        ended = has_ended(self.policy, responses[:, -1], self.sampling, responses.tolist).cpu()
        self.counts = torch.where((self.counts == 0) & ended, responses.shape[1], self.counts)
        return (self.counts > 0).to(input_ids.device)
