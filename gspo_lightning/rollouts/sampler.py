"""The in-process grouped sampler: the default rollout source.

Each prompt is prefilled once and its keys and values serve all G responses; rows that have finished leave the batch;
log-probabilities are caught while sampling. Works on unmodified transformers models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from gspo_lightning.policy import Policy
from gspo_lightning.rollouts.base import Draws, Progress, RolloutSource, finish, has_ended, sample_tokens
from gspo_lightning.types import Prompt, Rollout, SamplingParams

__all__ = ["GroupedSampler"]


@dataclass(slots=True)
class _Rows:
    """State of the rows that are still being decoded; every field is indexed by row."""

    slot: Tensor  # [rows] where the row writes its tokens
    prompt_id: Tensor
    sample: Tensor
    position: Tensor  # position of the next token in its sequence
    mask: Tensor  # [rows, prompt width + decoded] True on real tokens

    def select(self, keep: Tensor) -> _Rows:
        return _Rows(self.slot[keep], self.prompt_id[keep], self.sample[keep], self.position[keep], self.mask[keep])


class GroupedSampler(RolloutSource):
    """Samples in the trainer's own process, from the live weights.

    Args:
        max_rows: responses decoded at the same time; more prompts wait. Bounds the memory of the key-value cache.
        compact_at: share of finished rows at which the batch is compacted, in (0, 1].
    """

    def __init__(self, max_rows: int = 512, compact_at: float = 0.125) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        if not 0 < compact_at <= 1:
            raise ValueError(f"compact_at must lie in (0, 1], got {compact_at}")
        self.max_rows, self.compact_at = max_rows, compact_at

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
        """See :meth:`RolloutSource.generate`; prompts are taken ``max_rows // group_size`` at a time."""
        at_once = max(1, self.max_rows // group_size)
        groups: list[list[Rollout]] = []
        for start in range(0, len(prompts), at_once):
            groups += self._generate(policy, prompts[start : start + at_once], group_size, sampling, draws, version)
            if progress is not None:
                progress(len(groups) * group_size, len(prompts) * group_size)
        return groups

    def _generate(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: SamplingParams,
        draws: Draws,
        version: int,
    ) -> list[list[Rollout]]:
        device = policy.device
        total = len(prompts) * group_size
        tokens = torch.zeros(total, sampling.max_response_tokens, dtype=torch.int64, device=device)
        logprobs = torch.zeros(tokens.shape, dtype=torch.float32, device=device)
        lengths = torch.zeros(total, dtype=torch.int64, device=device)
        stopped = torch.zeros(total, dtype=torch.bool, device=device)

        rows, cache, logits = self._prefill(policy, prompts, group_size)
        alive = torch.ones(total, dtype=torch.bool, device=device)
        for step in range(sampling.max_response_tokens):
            chosen, chosen_logprobs = sample_tokens(logits, draws.uniform(rows.prompt_id, rows.sample, step), sampling)
            live = rows.slot[alive]
            tokens[live, step] = chosen[alive]
            logprobs[live, step] = chosen_logprobs[alive]
            lengths[live] = step + 1
            ended = has_ended(policy, tokens[rows.slot, : step + 1], sampling)
            stopped[rows.slot[alive & ended]] = True
            alive = alive & ~ended
            remaining = int(alive.sum())
            if remaining == 0 or step + 1 == sampling.max_response_tokens:
                break
            if alive.shape[0] - remaining >= self.compact_at * alive.shape[0]:
                keep = alive.nonzero(as_tuple=True)[0]
                cache.batch_select_indices(keep)
                rows, chosen, alive = rows.select(keep), chosen[keep], alive[keep]
            logits = self._decode(policy, rows, cache, chosen)
        counts, ends = lengths.tolist(), stopped.tolist()
        return [
            [
                finish(
                    prompt, k, tokens[i, : counts[i]], logprobs[i, : counts[i]],
                    stopped=ends[i], version=version, policy=policy,
                )
                for k, i in enumerate(range(p * group_size, (p + 1) * group_size))
            ]
            for p, prompt in enumerate(prompts)
        ]  # fmt: skip

    def _prefill(
        self, policy: Policy, prompts: Sequence[Prompt], group_size: int
    ) -> tuple[_Rows, DynamicCache, Tensor]:
        """One forward over the left-padded prompts; then every row of the cache stands for ``group_size`` responses."""
        device = policy.device
        width = max(len(p.token_ids) for p in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros(len(prompts), width, dtype=torch.bool)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
            mask[i, width - len(prompt.token_ids) :] = True
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)  # from the mask: padding never shifts a position
        cache = DynamicCache(config=policy.model.config)
        hidden = policy.backbone(
            input_ids=ids, attention_mask=mask.long(), position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        logits = policy.head(hidden).repeat_interleave(group_size, dim=0)
        cache.batch_repeat_interleave(group_size)
        total = len(prompts) * group_size
        rows = _Rows(
            slot=torch.arange(total, device=device),
            prompt_id=torch.tensor([p.id for p in prompts], device=device).repeat_interleave(group_size),
            sample=torch.arange(group_size, device=device).repeat(len(prompts)),
            position=mask.sum(-1).repeat_interleave(group_size),
            mask=mask.repeat_interleave(group_size, dim=0),
        )
        return rows, cache, logits

    @staticmethod
    def _decode(policy: Policy, rows: _Rows, cache: DynamicCache, chosen: Tensor) -> Tensor:
        """Feed the chosen tokens; returns the logits [rows, V] of the next ones."""
        rows.mask = torch.cat([rows.mask, torch.ones_like(rows.mask[:, :1])], dim=1)
        hidden = policy.backbone(
            input_ids=chosen.unsqueeze(1),
            attention_mask=rows.mask.long(),
            position_ids=rows.position.unsqueeze(1),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        rows.position = rows.position + 1
        return policy.head(hidden)
