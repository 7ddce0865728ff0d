"""The in-process grouped sampler: the default rollout source.

Each prompt is prefilled once and its keys and values serve all G responses; rows that have finished leave the batch and
waiting prompts take their place; log-probabilities are caught while sampling. Works on unmodified transformers models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.policy import Policy
from gspo_lightning.rollouts.base import Draws, Progress, RolloutSource, finish, has_ended, sample_tokens
from gspo_lightning.rollouts.decoding import Decoder, decoder_for
from gspo_lightning.types import Prompt, Rollout, SamplingParams

__all__ = ["GroupedSampler"]


@dataclass(slots=True)
class _Rows:
    """State of the rows in the batch, each field [rows]."""

    slot: Tensor  # where the row writes its tokens
    prompt_id: Tensor
    sample: Tensor
    position: Tensor  # of the next token in its sequence
    step: Tensor  # tokens written
    alive: Tensor  # still being decoded

    @classmethod
    def of(cls, prompts: Sequence[Prompt], first: int, group_size: int, device: torch.device) -> _Rows:
        """G rows for each prompt; ``first`` is the number of the first prompt."""
        count = len(prompts) * group_size
        widths = torch.tensor([len(p.token_ids) for p in prompts], dtype=torch.int64, device=device)
        return cls(
            slot=torch.arange(first * group_size, first * group_size + count, device=device),
            prompt_id=torch.tensor([p.id for p in prompts], dtype=torch.int64, device=device).repeat_interleave(
                group_size
            ),
            sample=torch.arange(group_size, device=device).repeat(len(prompts)),
            position=widths.repeat_interleave(group_size),
            step=torch.zeros(count, dtype=torch.int64, device=device),
            alive=torch.ones(count, dtype=torch.bool, device=device),
        )

    def _fields(self) -> tuple[Tensor, ...]:
        return self.slot, self.prompt_id, self.sample, self.position, self.step, self.alive

    def __getitem__(self, keep: Tensor) -> _Rows:
        return _Rows(*(x[keep] for x in self._fields()))

    def __add__(self, other: _Rows) -> _Rows:
        return _Rows(*(torch.cat(pair) for pair in zip(self._fields(), other._fields(), strict=True)))

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(slots=True)
class _Written:
    """What all responses of a call have come to: [P * G, T] and [P * G]."""

    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor
    stopped: Tensor

    @classmethod
    def empty(cls, rows: int, tokens: int, device: torch.device) -> _Written:
        return cls(
            torch.zeros(rows, tokens, dtype=torch.int64, device=device),
            torch.zeros(rows, tokens, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.bool, device=device),
        )

    def of(self, rows: _Rows) -> list[list[int]]:
        """The tokens of each row so far."""
        return [ids[:n] for ids, n in zip(self.tokens[rows.slot].tolist(), rows.step.tolist(), strict=True)]


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
        """See :meth:`RolloutSource.generate`."""
        total, device = len(prompts) * group_size, policy.device
        written = _Written.empty(total, sampling.max_response_tokens, device)
        decoder = decoder_for(policy)
        rows, logits = _Rows.of([], 0, group_size, device), torch.empty(0)
        groups: dict[int, list[Rollout]] = {}
        entered = 0

        def deliver() -> None:
            """Hand out the groups of which no row is left in the batch."""
            busy = set((rows.slot // group_size).tolist())
            for p in (p for p in range(entered) if p not in busy and p not in groups):
                groups[p] = self._group(policy, prompts[p], p, group_size, written, version)
                if self.on_group is not None:
                    self.on_group(groups[p])

        while entered < len(prompts) or len(rows):
            if new := self._admitted(len(prompts) - entered, len(rows), group_size, decoder):
                fresh = decoder.add(prompts[entered : entered + new], group_size)
                logits = torch.cat([logits, fresh]) if len(rows) else fresh
                rows = rows + _Rows.of(prompts[entered : entered + new], entered, group_size, device)
                entered += new
            chosen = self._sample(policy, rows, logits, sampling, draws, written)
            remaining = int(rows.alive.sum())
            if len(rows) - remaining >= self.compact_at * len(rows):
                if progress is not None:
                    progress(entered * group_size - remaining, total)
                keep = rows.alive.nonzero(as_tuple=True)[0]
                rows, chosen = rows[keep], chosen[keep]
                deliver()
                if remaining or decoder.may_grow:
                    decoder.keep(keep)
            if len(rows):
                logits = decoder.step(chosen, rows.position)
                rows.position = rows.position + 1
        return [groups[p] for p in range(len(prompts))]

    def _admitted(self, waiting: int, rows: int, group_size: int, decoder: Decoder) -> int:
        """How many prompts may join now: small groups of newcomers are not worth a forward pass of their own."""
        room = max(0, self.max_rows - rows) // group_size
        if rows == 0:
            return min(waiting, max(1, room))
        if not decoder.may_grow or room * group_size < self.compact_at * self.max_rows:
            return 0
        return min(waiting, room)

    @staticmethod
    def _sample(
        policy: Policy, rows: _Rows, logits: Tensor, sampling: SamplingParams, draws: Draws, written: _Written
    ) -> Tensor:
        """Draw the next token of every row and note those of living ones; returns the tokens [rows]."""
        uniform = draws.uniform(rows.prompt_id, rows.sample, rows.step)
        chosen, logprobs = sample_tokens(logits, uniform, sampling)
        slot, step = rows.slot[rows.alive], rows.step[rows.alive]
        written.tokens[slot, step] = chosen[rows.alive]
        written.logprobs[slot, step] = logprobs[rows.alive]
        written.lengths[slot] = step + 1
        rows.step = rows.step + rows.alive
        ended = has_ended(policy, chosen, sampling, lambda: written.of(rows))
        written.stopped[rows.slot[rows.alive & ended]] = True
        rows.alive = rows.alive & ~ended & (rows.step < sampling.max_response_tokens)
        return chosen

    @staticmethod
    def _group(
        policy: Policy, prompt: Prompt, number: int, group_size: int, written: _Written, version: int
    ) -> list[Rollout]:
        own = slice(number * group_size, (number + 1) * group_size)
        tokens, logprobs = written.tokens[own].cpu(), written.logprobs[own].cpu()
        counts, ends = written.lengths[own].tolist(), written.stopped[own].tolist()
        return [
            finish(
                prompt, k, tokens[k, : counts[k]], logprobs[k, : counts[k]],
                stopped=ends[k], version=version, policy=policy,
            )
            for k in range(group_size)
        ]  # fmt: skip
