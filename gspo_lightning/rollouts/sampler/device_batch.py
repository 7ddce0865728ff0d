"""Decode batch of an accelerator: rows whose state stays on the device, and one launch of the host per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from gspo_lightning.core.types import SamplingParams
from gspo_lightning.rollouts.drawing import Draws, sample_tokens
from gspo_lightning.rollouts.ending import has_ended
from gspo_lightning.rollouts.sampler.admission_queue import Block, Prefill
from gspo_lightning.rollouts.sampler.decode_batch import DecodeBatch
from gspo_lightning.rollouts.sampler.decoding_rows import DecodingRows, ResponseBuffer
from gspo_lightning.rollouts.sampler.device_decoder import WINDOW, DeviceDecoder


class DeviceBatch(DecodeBatch):
    """Rows in a :class:`DeviceDecoder`, whose steps draw the tokens and end the rows; without stop strings.

    The host collects what was drawn when rows join or leave, and every :data:`WINDOW` steps. Draws depend on the
    prompt, the sample and the position only, so tokens are those of any other batch.
    """

    decoder: DeviceDecoder

    def __init__(
        self, decoder: DeviceDecoder, buffer: ResponseBuffer, sampling: SamplingParams, draws: Draws, compact_at: float
    ) -> None:
        super().__init__(decoder, buffer, sampling, draws, compact_at)
        self._draws = draws
        self._turns = 0
        """Steps whose tokens are in the ring of the decoder's state."""
        self._loaded = False
        """True while the decoder's state, and not :attr:`rows`, is that of the rows."""

    @override
    def step(self) -> None:
        if not len(self):
            return
        if self._turns == WINDOW:
            self._collect()
        if not self._loaded:
            self._load()
        self._turns += 1  # an error in the middle of a step leaves tokens that are not counted
        self.decoder.draw(self.sampling)

    @override
    def join(self, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        self._collect()
        self._joining = list(blocks)
        slots = [slot for block in blocks for slot in block.slots]
        steps = [block.step for block in blocks for _ in block.slots]
        logits = self.decoder.add(Prefill.of(blocks, self.buffer.beginnings))
        with torch.inference_mode():
            new = DecodingRows.of(self.buffer.beginnings, slots, steps, self.policy.device)
            chosen = self._first(new, logits)
            self._chosen = torch.cat([self._chosen, chosen]) if len(self) else chosen
            self.rows = self.rows + new
        self.slots = torch.cat([self.slots, torch.tensor(slots)])
        self._joining.clear()
        self._living.forget()

    def _first(self, rows: DecodingRows, logits: Tensor) -> Tensor:
        """Draw the first token of rows that join."""
        uniform = self._draws.uniform(rows.prompt_id, rows.sample, rows.drawn + rows.step)
        chosen, logprobs = sample_tokens(logits, uniform, self.sampling)
        self.buffer.note(rows, chosen, logprobs)
        self.buffer.end(rows, has_ended(self.policy, chosen, self.sampling, lambda *_: [], rows.alive))
        return chosen

    @override
    def sample(self) -> None:
        """Do nothing: a step has drawn the tokens."""

    @override
    def close_up(self) -> bool:
        alive = self.decoder.state.living if self._loaded else self.rows.alive
        remaining = self._living.count(alive)
        if remaining is None or len(self) - remaining < self.compact_at * len(self):
            return False
        self._collect()
        self.buffer.record(self.rows)
        keep = self.rows.alive.cpu().nonzero().squeeze(1)  # in their order: rows do not move in memory
        there = keep.to(self.policy.device, non_blocking=True)
        with torch.inference_mode():
            self.rows, self._chosen, self.slots = self.rows[there], self._chosen[there], self.slots[keep]
        self._living.forget()
        self.decoder.keep(keep)
        return True

    @override
    def unfinished(self) -> list[tuple[int, list[int]]]:
        self._collect()
        return super().unfinished()

    # the state on the device ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _load(self) -> None:
        """Write the rows into the decoder's state, with random numbers for the next steps; others are idle."""
        state = self.decoder.state
        rows = self.rows
        count = len(self)
        for place, value in (
            (state.token, self._chosen), (state.position, rows.position), (state.step, rows.step),
            (state.budget, rows.token_budget), (state.alive, rows.alive), (state.stopped, rows.stopped),
        ):  # fmt: skip
            place[count:].zero_()
            place[:count].copy_(value)
        ahead = torch.arange(WINDOW, device=state.turn.device).unsqueeze(1)
        positions = rows.drawn + rows.step + ahead
        state.uniforms[:, :count].copy_(self._draws.uniform(rows.prompt_id, rows.sample, positions))
        state.turn.zero_()
        self._turns = 0
        self._loaded = True

    @torch.inference_mode()
    def _collect(self) -> None:
        """Read the rows back, and move drawn tokens into the buffer; nothing waits for the device."""
        if not self._loaded:
            return
        state = self.decoder.state
        rows = self.rows
        count = len(self)
        width = self.buffer.tokens.shape[1]
        columns = rows.step.unsqueeze(1) + torch.arange(self._turns, device=rows.step.device)
        columns = columns.clamp(max=width - 1)  # behind the end of a row, nobody reads
        slots = rows.slot.unsqueeze(1).expand_as(columns)
        self.buffer.tokens[slots, columns] = state.tokens[: self._turns, :count].T
        self.buffer.logprobs[slots, columns] = state.logprobs[: self._turns, :count].T
        self._chosen = state.token[:count].clone()
        rows.position = state.position[:count].clone()
        rows.step = state.step[:count].clone()
        rows.alive = state.alive[:count].clone()
        rows.stopped = state.stopped[:count].clone()
        self._turns = 0
        self._loaded = False
