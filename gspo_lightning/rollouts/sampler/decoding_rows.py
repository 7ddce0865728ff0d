"""State of the rows being decoded, and the buffer of all responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gspo_lightning.core.types import FinishReason, Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.vision_inputs import shift
from gspo_lightning.rollouts.ending import finish
from gspo_lightning.rollouts.source import ResponsePrefix


@dataclass(slots=True)
class DecodingRows:
    """State of the rows in the batch; every field is a tensor [rows]."""

    slot: Tensor
    """Number of the beginning."""
    prompt_id: Tensor
    """Id of the prompt, part of every draw."""
    sample: Tensor
    """Number of the response among those to its prompt, part of every draw."""
    drawn: Tensor
    """Tokens drawn before this call."""
    token_budget: Tensor
    """Largest number of tokens."""
    position: Tensor
    """Position of the next token; a picture takes fewer positions than tokens."""
    step: Tensor
    """Tokens written."""
    alive: Tensor
    """True while the row is being decoded."""
    stopped: Tensor
    """True if the policy ended the row."""

    @classmethod
    def of(
        cls, beginnings: Sequence[ResponsePrefix], slots: Sequence[int], steps: Sequence[int], device: torch.device
    ) -> DecodingRows:
        """Return one row per beginning, with ``steps`` tokens in the buffer already."""
        numbers: list[tuple[int, ...]] = []
        for number, written in zip(slots, steps, strict=True):
            row = beginnings[number]
            next_position = len(row.context) + written + shift(row.prompt.media)
            numbers.append((number, row.prompt.id, row.sample, row.drawn, row.token_budget, next_position, written))
        # all of them in one copy to the device
        columns = torch.tensor(numbers).long().view(-1, 7).T.to(device, non_blocking=True)
        slot, prompt_id, sample, drawn, token_budget, position, step = columns.unbind()
        alive = torch.ones(len(numbers), dtype=torch.bool, device=device)
        return cls(slot, prompt_id, sample, drawn, token_budget, position, step, alive, ~alive)

    def _fields(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def __getitem__(self, keep: Tensor) -> DecodingRows:
        return DecodingRows(*(x[keep] for x in self._fields()))

    def __add__(self, other: DecodingRows) -> DecodingRows:
        return DecodingRows(*(torch.cat(pair) for pair in zip(self._fields(), other._fields(), strict=True)))

    def __len__(self) -> int:
        return len(self.slot)


class ResponseBuffer:
    """Tokens and log-probabilities [N, T + 1] of N responses, their ``lengths`` [N] and ``ended`` and ``stopped`` [N].

    Values beyond the length of a response are undefined.
    """

    def __init__(self, beginnings: Sequence[ResponsePrefix], device: torch.device) -> None:
        rows = len(beginnings)
        width = max((row.token_budget for row in beginnings), default=0)
        self.beginnings = beginnings
        self.tokens = torch.zeros(rows, width + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(rows, width + 1, dtype=torch.float32, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(rows, dtype=torch.bool, device=device)

    def note(self, rows: DecodingRows, tokens: Tensor, logprobs: Tensor) -> None:
        """Append one token [rows] to every living row; what the other rows drew is never read."""
        self.tokens[rows.slot, rows.step] = tokens
        self.logprobs[rows.slot, rows.step] = logprobs
        rows.step = rows.step + rows.alive

    @staticmethod
    def end(rows: DecodingRows, stopped: Tensor) -> None:
        """Mark rows as finished that the policy has ended (bool [rows]) or that have no room left."""
        rows.stopped = rows.stopped | (stopped & rows.alive)
        rows.alive = rows.alive & ~(stopped | (rows.step >= rows.token_budget))

    def record(self, rows: DecodingRows) -> None:
        """Record the length and end of these rows; needed before they leave the batch."""
        self.lengths[rows.slot] = rows.step
        self.ended[rows.slot] = ~rows.alive
        self.stopped[rows.slot] = rows.stopped

    def newest(self, rows: DecodingRows, which: Sequence[int], count: int | None) -> list[list[int]]:
        """Return the last ``count`` tokens (None: all) of the messages of some rows, by their places in the batch."""
        places = torch.tensor(which, dtype=torch.int64, device=rows.slot.device)
        slots = rows.slot[places]
        steps = rows.step[places]
        width = int(steps.max()) if count is None else count
        columns = steps.unsqueeze(1) - width + torch.arange(width, device=steps.device)
        ids = self.tokens[slots.unsqueeze(1), columns.clamp(min=0)].tolist()
        messages: list[list[int]] = []
        for slot, step, row in zip(slots.tolist(), steps.tolist(), ids, strict=True):
            before = self.beginnings[slot].written
            missing = len(before) if count is None else max(0, min(width - step, len(before)))
            messages.append([*before[len(before) - missing :], *row[max(0, width - step) :]])
        return messages

    def rollouts(self, which: Sequence[int], version: int, policy: Policy) -> list[Rollout]:
        """Return some responses on the CPU, by the numbers of their beginnings, with two host waits in all."""
        if not which:
            return []
        tokens, logprobs, numbers = self._on_host(which)
        rollouts: list[Rollout] = []
        for i, (length, ended, stopped) in enumerate(numbers.T.tolist()):
            row = self.beginnings[which[i]]
            reason = FinishReason.CUT
            if ended:
                reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            rollouts.append(
                finish(
                    row.prompt, row.sample, tokens[i, :length], logprobs[i, :length],
                    reason=reason, version=version, policy=policy,
                )
            )  # fmt: skip
        return rollouts

    def _on_host(self, which: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Copy tokens and log-probabilities [n, T + 1], and lengths, ended and stopped [3, n], to the host."""
        index = torch.tensor(which).to(self.tokens.device, non_blocking=True)
        numbers = torch.stack([x.index_select(0, index).long() for x in (self.lengths, self.ended, self.stopped)])
        tokens = torch.cat([self.tokens.index_select(0, index), numbers.T], dim=1).cpu()
        width = self.tokens.shape[1]
        return tokens[:, :width], self.logprobs.index_select(0, index).cpu(), tokens[:, width:].T
