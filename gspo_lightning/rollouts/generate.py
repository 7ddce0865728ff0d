"""Rollouts through transformers' own ``generate``: slower, for models the grouped sampler does not know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from gspo_lightning.policy import Policy
from gspo_lightning.rollouts.base import Draws, Progress, RolloutSource, finish, sample_tokens
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
        chooser = _Choose(rows, sampling, draws, width)
        # a fresh config: the model's own generation_config may hold penalties or top-p that would change the policy
        config = GenerationConfig(
            max_new_tokens=sampling.max_response_tokens,
            do_sample=False,
            eos_token_id=list(sampling.stop_token_ids) or None,
            pad_token_id=policy.tokenizer.pad_token_id,
            stop_strings=list(sampling.stop_strings) or None,
        )
        out = policy.model.generate(
            input_ids=ids.to(policy.device),
            attention_mask=mask.to(policy.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([chooser]),
            **({"tokenizer": policy.tokenizer} if sampling.stop_strings else {}),
        )[:, width:].cpu()
        logprobs = torch.stack(chooser.logprobs, dim=1)
        stops = torch.tensor(sampling.stop_token_ids)
        result = []
        for i, (prompt, k) in enumerate(rows):
            ends = torch.isin(out[i], stops).nonzero()
            count = int(ends[0]) + 1 if len(ends) else out.shape[1]
            stopped = bool(len(ends))
            if sampling.stop_strings and not stopped:
                count, stopped = _cut_at_stop(policy, out[i], sampling.stop_strings)
            result.append(
                finish(prompt, k, out[i, :count], logprobs[i, :count], stopped=stopped, version=version, policy=policy)
            )
        return result


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


def _cut_at_stop(policy: Policy, tokens: Tensor, stops: Sequence[str]) -> tuple[int, bool]:
    for count in range(1, tokens.shape[0] + 1):
        text = policy.tokenizer.decode(tokens[:count].tolist(), skip_special_tokens=True)
        if any(stop in text for stop in stops):
            return count, True
    return int(tokens.shape[0]), False
