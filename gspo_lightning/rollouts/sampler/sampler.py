"""The in-process grouped sampler: the default rollout source.

Each prompt is prefilled once and its keys and values serve all G responses; rows that have finished leave the batch and
waiting prompts take their place; log-probabilities are caught while sampling. Works on unmodified transformers models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import get_args

import torch
from torch import Tensor

from gspo_lightning.policy.compute_copy import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.base import Beginning, Enough, Progress, RolloutSource
from gspo_lightning.rollouts.drawing import Draws, sample_tokens
from gspo_lightning.rollouts.ending import has_ended
from gspo_lightning.rollouts.generate import TransformersGenerate
from gspo_lightning.rollouts.sampler.decoding import DecodeBy, Decoder, decoder_for
from gspo_lightning.rollouts.sampler.readback import Readback
from gspo_lightning.rollouts.sampler.routes import RecordingDecoder, RouteBook
from gspo_lightning.rollouts.sampler.rows import ResponseBuffer, Rows
from gspo_lightning.types import Prompt, Rollout, SamplingParams

__all__ = ["GroupedSampler"]

AHEAD = 16
"""Tokens for which random numbers are drawn at a time."""


class GroupedSampler(RolloutSource):
    """Samples in the trainer's own process, from the live weights.

    Args:
        max_rows: responses decoded at the same time; more prompts wait. Bounds the memory of the key-value cache.
        compact_at: share of finished rows at which the batch is compacted, in (0, 1].
        decode: how tokens go through the model: ``model`` takes its own modules; ``auto`` does without them where a
            comparison with them allows it, which on a CPU halves the time of a small model's step.
    """

    records_routes = True
    extends_routes = True
    reads_pictures = True

    def __init__(self, max_rows: int = 512, compact_at: float = 0.125, decode: DecodeBy = "auto") -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        if not 0 < compact_at <= 1:
            raise ValueError(f"compact_at must lie in (0, 1], got {compact_at}")
        if decode not in get_args(DecodeBy):
            raise ValueError(f"decode must be one of {', '.join(get_args(DecodeBy))}, got {decode!r}")
        self.max_rows, self.compact_at, self.decode = max_rows, compact_at, decode
        self._busiest = self._too_many = 0

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
        if policy.decoding.way == "generate":
            return self._slow(len(prompts) * group_size).generate(
                policy, prompts, group_size=group_size, sampling=sampling, draws=draws, version=version,
                progress=progress,
            )  # fmt: skip
        beginnings = Beginning.groups(prompts, group_size, sampling.max_response_tokens)
        buffer = ResponseBuffer(beginnings, policy.device)
        book: RouteBook | None = None
        if policy.routing is not None and policy.routing.replay != "R2" and sampling.neutral:
            book = RouteBook(len(beginnings), sampling.max_response_tokens, policy.routing, policy.device)
        groups: dict[int, list[Rollout]] = {}

        def left(entered: int, busy: set[int]) -> bool:
            """Hand out the groups of which no row is left in the batch."""
            working = {slot // group_size for slot in busy}
            over = [p for p in range(entered // group_size) if p not in working and p not in groups]
            rollouts = buffer.rollouts([p * group_size + k for p in over for k in range(group_size)], version, policy)
            found = {p: rollouts[i * group_size : (i + 1) * group_size] for i, p in enumerate(over)}
            if book is not None:
                book.fill({p: (p * group_size, group) for p, group in found.items()})
            for p, group in found.items():
                groups[p] = group
                if self.on_group is not None:
                    self.on_group(group)
            if progress is not None:
                progress(entered - len(busy), len(beginnings))
            return False

        with in_compute_dtype(policy) as cast:
            self._decode(cast, buffer, [group_size] * len(prompts), sampling, draws, left, book)
        return [groups[p] for p in range(len(prompts))]

    def extend(
        self,
        policy: Policy,
        beginnings: Sequence[Beginning],
        *,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        enough: Enough | None = None,
    ) -> list[Rollout]:
        """See :meth:`RolloutSource.extend`; neighbours with the same context and pictures share its keys and values.

        Experts are written down for Routing Replay R3 only.
        """
        if policy.decoding.way == "generate":
            return self._slow(len(beginnings)).extend(
                policy, beginnings, sampling=sampling, draws=draws, version=version, enough=enough
            )
        buffer = ResponseBuffer(beginnings, policy.device)
        blocks = [len(list(same)) for _, same in groupby(beginnings, key=lambda row: (row.context, row.prompt.media))]
        book: RouteBook | None = None
        if policy.routing is not None and policy.routing.replay == "R3" and sampling.neutral:
            book = RouteBook(
                len(beginnings), max((b.room for b in beginnings), default=0), policy.routing, policy.device
            )

        def left(entered: int, busy: set[int]) -> bool:
            return enough is not None and enough([i for i in range(entered) if i not in busy])

        with in_compute_dtype(policy) as cast:
            self._decode(cast, buffer, blocks, sampling, draws, left, book)
        pieces = buffer.rollouts(range(len(beginnings)), version, policy)
        if book is not None:
            ends = list(accumulate(blocks, initial=0))[: len(book.prompts) + 1]  # the others were cut before they began
            book.fill({i: (first, pieces[first:last]) for i, (first, last) in enumerate(pairwise(ends))})
        return pieces

    def local(self) -> GroupedSampler:
        """See :meth:`RolloutSource.local`."""
        return self

    def use_less_memory(self) -> int:
        """See :meth:`RolloutSource.use_less_memory`. The responses to a prompt are never decoded apart."""
        most, self._busiest = self._busiest, 0
        if most <= 1 or 0 < self._too_many <= most:
            return 0
        self._too_many, self.max_rows = most, most // 2
        return self.max_rows

    def _slow(self, rows: int) -> TransformersGenerate:
        """What decodes where nothing else is right."""
        self._busiest = max(self._busiest, min(rows, self.max_rows))
        return TransformersGenerate(self.max_rows)

    @torch.no_grad()
    def _decode(
        self,
        policy: Policy,
        buffer: ResponseBuffer,
        blocks: Sequence[int],
        sampling: SamplingParams,
        draws: Draws,
        left: Callable[[int, set[int]], bool],
        book: RouteBook | None = None,
    ) -> None:
        """Write all responses.

        Args:
            policy: the weights, in the dtype that they are computed with.
            buffer: is filled in.
            blocks: neighbours in ``buffer.beginnings`` that share a context.
            sampling: temperature and stops.
            draws: the randomness.
            left: called whenever rows have left the batch with the number of rows that ever entered and the slots of
                those still in it; True ends the call.
            book: where the experts of a mixture are written down.
        """
        ends = list(accumulate(blocks, initial=0))
        decoder, device = decoder_for(policy, self.decode), policy.device
        if book is not None:
            decoder = RecordingDecoder(decoder, book, policy)
        rows, logits, uniform = Rows.of([], 0, device), torch.empty(0), _Ahead(draws)
        slots, living = torch.zeros(0, dtype=torch.int64), Readback(device)
        entered = 0  # blocks
        while entered < len(blocks) or len(rows):
            if new := self._admitted(blocks[entered:], len(rows), decoder):
                first, last = ends[entered], ends[entered + new]
                self._busiest = max(self._busiest, len(rows) + last - first)
                firsts = [buffer.beginnings[i] for i in ends[entered : entered + new]]
                contexts, media = [row.context for row in firsts], [row.prompt.media for row in firsts]
                fresh = decoder.add(contexts, blocks[entered : entered + new], media)
                logits = torch.cat([logits, fresh]) if len(rows) else fresh
                rows = rows + Rows.of(buffer.beginnings[first:last], first, device)
                slots = torch.cat([slots, torch.arange(first, last)])
                uniform.forget()
                living.forget()
                entered += new
            chosen = self._sample(policy, rows, logits, sampling, uniform.next(rows), buffer)
            remaining = living.count(rows.alive)
            if remaining is not None and len(rows) - remaining >= self.compact_at * len(rows):
                buffer.record(rows)
                keep = _closed_up(rows.alive.cpu())
                there = keep.to(device, non_blocking=True)
                rows, chosen, slots = rows[there], chosen[there], slots[keep]
                uniform.keep(there)
                living.forget()
                if left(ends[entered], set(slots.tolist())):
                    return
                if len(rows) or decoder.may_grow:
                    decoder.keep(keep)
            if len(rows):
                if isinstance(decoder, RecordingDecoder):
                    decoder.slots, decoder.steps = rows.slot, rows.step - 1
                logits = decoder.step(chosen, rows.position)
                moved = rows.alive if living.late else 1  # where its end is not known yet, a row stays at its end
                rows.position = rows.position + moved

    def _admitted(self, waiting: Sequence[int], rows: int, decoder: Decoder) -> int:
        """How many blocks may join now: a few newcomers are not worth a forward pass of their own."""
        room = self.max_rows - rows
        if rows and (not decoder.may_grow or room < self.compact_at * self.max_rows):
            return 0
        fitting = sum(total <= room for total in accumulate(waiting))
        return fitting if rows or not waiting else max(1, fitting)

    @staticmethod
    @torch.inference_mode()
    def _sample(
        policy: Policy, rows: Rows, logits: Tensor, sampling: SamplingParams, uniform: Tensor, buffer: ResponseBuffer
    ) -> Tensor:
        """Draw the next token of every row and note those of living ones; returns the tokens [rows]."""
        chosen, logprobs = sample_tokens(logits, uniform, sampling)
        buffer.note(rows, chosen, logprobs)
        newest = functools.partial(buffer.newest, rows)
        buffer.end(rows, has_ended(policy, chosen, sampling, newest, rows.alive))
        return chosen


def _closed_up(alive: Tensor) -> Tensor:
    """The living rows, the last of them in the places of dead ones: the others stay where they are. On the host."""
    places = alive.nonzero().squeeze(1)
    count = len(places)
    order = torch.arange(count)
    order[~alive[:count]] = places[places >= count]
    return order


class _Ahead:
    """The uniform numbers [rows] of the next tokens, ``AHEAD`` tokens at a time: that takes two dozen operators."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.block: list[Tensor] = []

    @torch.inference_mode()
    def next(self, rows: Rows) -> Tensor:
        """Of the next token of these rows."""
        if not self.block:
            positions = (rows.drawn + rows.step).unsqueeze(1) + torch.arange(AHEAD, device=rows.step.device)
            block = self.draws.uniform(rows.prompt_id.unsqueeze(1), rows.sample.unsqueeze(1), positions)
            self.block = list(block.T.contiguous().unbind())[::-1]
        return self.block.pop()

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on."""
        self.block = list(torch.stack(self.block)[:, rows].unbind()) if self.block else []

    def forget(self) -> None:
        """Other rows have come."""
        self.block = []
