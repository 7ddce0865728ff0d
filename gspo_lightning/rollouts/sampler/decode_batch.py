"""Decode batch: each step draws a token for all rows, some rows end, and others join."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gspo_lightning.core.types import SamplingParams
from gspo_lightning.policy.attention import closed_up
from gspo_lightning.policy.logprobs import logprobs_from_logits
from gspo_lightning.rollouts.drawing import Draws, sample_tokens
from gspo_lightning.rollouts.ending import has_ended
from gspo_lightning.rollouts.sampler.admission_queue import Block, Prefill
from gspo_lightning.rollouts.sampler.decoding import Decoder
from gspo_lightning.rollouts.sampler.decoding_rows import DecodingRows, ResponseBuffer
from gspo_lightning.rollouts.sampler.routes import RecordingDecoder

LAG = 2
"""Steps between a count and its arrival. The same in every run: rows leave a batch at the same tokens."""
AHEAD = 16
"""Tokens per row for which random numbers are drawn at a time."""


class Carrier(Protocol):
    """Scalar in transfer to the host."""

    def __init__(self, value: Tensor) -> None: ...

    def read(self) -> int:
        """Return the value at the start of the transfer."""


class _Pinned:
    """Asynchronous copy into pinned memory; a read waits for earlier work only."""

    def __init__(self, value: Tensor) -> None:
        self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        self._host.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(value.device))  # the stream of the copy, on any current device

    def read(self) -> int:
        self._arrived.synchronize()
        return int(self._host)


CARRIERS: dict[str, type[Carrier]] = {"cuda": _Pinned}
"""Carriers by device type; on other devices, such as a CPU, a number is read at once."""


class AsyncHostCopy:
    """Number of living rows, step by step, read some steps later: the host never waits for the newest step.

    A host that asks a GPU after every token whether a row has ended waits until that token is computed, and the GPU
    idles until the next one is launched. The answer may be a few tokens old: a finished row is dropped that much later,
    and what it computes until then is never read.
    """

    def __init__(self, device: torch.device) -> None:
        self._carrier = CARRIERS.get(device.type)
        self._waiting: deque[Carrier] = deque()

    @property
    def late(self) -> bool:
        """True if counts arrive late."""
        return self._carrier is not None

    def count(self, alive: Tensor) -> int | None:
        """Return a number of living rows, or that of a bool [rows] tensor: now or :data:`LAG` calls ago, or None."""
        living = alive.sum() if alive.dim() else alive
        if self._carrier is None:
            return int(living)
        self._waiting.append(self._carrier(living))
        return self._waiting.popleft().read() if len(self._waiting) > LAG else None

    def forget(self) -> None:
        """Drop pending counts, because the rows have changed."""
        self._waiting.clear()


class DecodeBatch:
    """Rows in a decoder. Drawn tokens are in the buffer even if an error ends the batch.

    Args:
        decoder: an empty decoder.
        buffer: receives all responses.
        sampling: temperature and stops.
        draws: the randomness.
        compact_at: share of finished rows at which they leave the batch.
    """

    def __init__(
        self, decoder: Decoder, buffer: ResponseBuffer, sampling: SamplingParams, draws: Draws, compact_at: float
    ) -> None:
        self.decoder = decoder
        self.buffer = buffer
        self.policy = decoder.policy
        self.sampling = sampling
        self.compact_at = compact_at
        self.rows = DecodingRows.of([], [], [], self.policy.device)
        self.slots = torch.zeros(0, dtype=torch.int64)
        """Numbers of the rows' beginnings, on the host."""
        self._logits = torch.empty(0)
        """[rows, V], from which the next tokens are drawn."""
        self._chosen = torch.empty(0)
        """[rows], the tokens drawn last."""
        self._uniform = _Ahead(draws)
        self._living = AsyncHostCopy(self.policy.device)
        self._joining: list[Block] = []
        """Blocks whose prefill is under way: an error may leave it undone."""

    def __len__(self) -> int:
        return len(self.slots)

    def step(self) -> None:
        """Feed the tokens drawn last."""
        if not len(self):
            return
        if isinstance(self.decoder, RecordingDecoder):
            self.decoder.slots = self.rows.slot
            self.decoder.steps = self.rows.step - 1
        self._logits = self.decoder.step(self._chosen, self.rows.position)
        moved = self.rows.alive if self._living.late else 1  # a finished row still in the batch keeps its position
        self.rows.position = self.rows.position + moved

    def join(self, blocks: Sequence[Block]) -> None:
        """Prefill the contexts of new rows."""
        if not blocks:
            return
        self._joining = list(blocks)
        slots = [slot for block in blocks for slot in block.slots]
        steps = [block.step for block in blocks for _ in block.slots]
        if isinstance(self.decoder, RecordingDecoder):
            self.decoder.joining = blocks
        fresh = self.decoder.add(Prefill.of(blocks, self.buffer.beginnings))
        logits = torch.cat([self._logits, fresh]) if len(self) else fresh
        rows = self.rows + DecodingRows.of(self.buffer.beginnings, slots, steps, self.policy.device)
        all_slots = torch.cat([self.slots, torch.tensor(slots)])
        # from here on nothing can fail: after an error in between, rows would be counted twice
        self._logits = logits
        self.rows = rows
        self.slots = all_slots
        self._joining.clear()
        self._uniform.forget()
        self._living.forget()

    @torch.inference_mode()
    def sample(self) -> None:
        """Draw the next token of every row; it counts once the end of the row is known."""
        rows = dataclasses.replace(self.rows)
        chosen, logprobs = sample_tokens(self._logits, self._uniform.next(rows), self.sampling)
        if self.policy.batch_invariant:  # as training computes them
            logprobs, _ = logprobs_from_logits(self._logits, chosen, self.sampling.temperature or 1.0)
        self.buffer.note(rows, chosen, logprobs)
        newest = functools.partial(self.buffer.newest, rows)
        self.buffer.end(rows, has_ended(self.policy, chosen, self.sampling, newest, rows.alive))
        self._chosen = chosen
        self.rows = rows

    def close_up(self) -> bool:
        """Remove finished rows if they are many; return True if they were removed."""
        remaining = self._living.count(self.rows.alive)
        if remaining is None or len(self) - remaining < self.compact_at * len(self):
            return False
        self.buffer.record(self.rows)
        keep = closed_up(self.rows.alive.cpu())
        keep_on_device = keep.to(self.policy.device, non_blocking=True)
        self.rows = self.rows[keep_on_device]
        self._chosen = self._chosen[keep_on_device]
        self.slots = self.slots[keep]
        self._uniform.keep(keep_on_device)
        self._living.forget()
        if len(self) or self.decoder.may_grow:
            self.decoder.keep(keep)
        return True

    def unfinished(self) -> list[tuple[int, list[int]]]:
        """Return slots and tokens of unfinished rows, after an error; the host waits."""
        self.buffer.record(self.rows)
        slots: list[int] = []
        lengths: list[int] = []
        rows = zip(self.rows.slot.tolist(), self.rows.step.tolist(), self.rows.alive.tolist(), strict=True)
        for slot, length, alive in rows:  # picked on the host: the device may be out of memory
            if alive:
                slots.append(slot)
                lengths.append(length)
        for block in self._joining:
            slots += block.slots
            lengths += [block.step] * len(block.slots)
        tokens = self.buffer.tokens[torch.tensor(slots, dtype=torch.int64)].tolist()
        return [(slot, row[:length]) for slot, length, row in zip(slots, lengths, tokens, strict=True)]


class _Ahead:
    """Prefetched uniform numbers [rows], ``AHEAD`` tokens at a time: drawing them takes two dozen operators."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.block: list[Tensor] = []

    @torch.inference_mode()
    def next(self, rows: DecodingRows) -> Tensor:
        """Return the numbers for the next token of these rows."""
        if not self.block:
            positions = (rows.drawn + rows.step).unsqueeze(1) + torch.arange(AHEAD, device=rows.step.device)
            block = self.draws.uniform(rows.prompt_id.unsqueeze(1), rows.sample.unsqueeze(1), positions)
            self.block = list(block.T.contiguous().unbind())[::-1]
        return self.block.pop()

    def keep(self, rows: Tensor) -> None:
        """Keep the numbers of these rows only."""
        self.block = list(torch.stack(self.block)[:, rows].unbind()) if self.block else []

    def forget(self) -> None:
        """Drop all numbers, because rows have joined."""
        self.block = []
