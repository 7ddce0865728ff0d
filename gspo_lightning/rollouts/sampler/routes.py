"""The experts that a mixture of experts sends tokens to while they are sampled, for Routing Replay (R3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gspo_lightning.pictures import Media
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Routing, index_dtype, recording, routed
from gspo_lightning.rollouts.sampler.decoding import Decoder
from gspo_lightning.rollouts.sampler.waiting import Block
from gspo_lightning.types import Rollout

__all__ = ["RecordingDecoder", "RouteBook"]


class RouteBook:
    """The routes of prompts and responses of one call of a sampler.

    Args:
        rows: N responses, those to a prompt one after another.
        group_size: G of each prompt.
        tokens: T of a response at most.
        routing: of the policy.
        device: of the responses' routes.
    """

    def __init__(self, rows: int, group_size: int, tokens: int, routing: Routing, device: torch.device) -> None:
        self.group_size = group_size
        self.prompts: dict[int, Tensor] = {}
        """[p, L, k] of each prompt, by its number."""
        shape = (rows, tokens, routing.layers, routing.top_k)
        self.responses = torch.zeros(shape, dtype=index_dtype(routing.experts), device=device)

    def note(self, blocks: Sequence[Block], chosen: Sequence[Tensor]) -> None:
        """The experts [c, L, k] of the contexts of rows that join: of a prompt, or of it and a part of a response."""
        for block, experts in zip(blocks, chosen, strict=True):
            routes = experts.to(self.responses.dtype)
            if block.step:
                for slot in block.slots:
                    self.responses[slot, block.step - 1] = routes[-1]
            else:
                self.prompts[block.slots[0] // self.group_size] = routes

    def fill(self, groups: Mapping[int, Sequence[Rollout]]) -> None:
        """Set the routes of the responses to some prompts; the last token of a response was never forwarded.

        One copy brings all of them to the host.
        """
        if not groups:
            return
        rows = [(p, p * len(group) + k, rollout) for p, group in groups.items() for k, rollout in enumerate(group)]
        parts = [self.prompts[p] for p in groups]
        parts += [self.responses[row, : len(rollout.token_ids) - 1] for _, row, rollout in rows]
        widths = [len(part) for part in parts]
        here = torch.cat(parts).cpu().split(widths)
        prompts = dict(zip(groups, here, strict=False))
        for (p, _, rollout), kept in zip(rows, here[len(groups) :], strict=True):
            rollout.routes = torch.cat([prompts[p], kept])


class RecordingDecoder(Decoder):
    """A decoder whose forward passes are written into a book; the sampler says which rows they were for."""

    def __init__(self, inner: Decoder, book: RouteBook, policy: Policy) -> None:
        super().__init__(policy)
        self.inner, self.book, self.may_grow = inner, book, inner.may_grow
        self.slots = self.steps = torch.empty(0, dtype=torch.int64)
        """[R] of the next :meth:`step`: the response of each row, and the number of the token that is fed."""
        self.joining: Sequence[Block] = ()
        """Rows of the next :meth:`add`."""

    def add(self, contexts: Sequence[Sequence[int]], rows: Sequence[int], media: Sequence[Media] = ()) -> Tensor:
        """See :meth:`Decoder.add`."""
        with recording(self.policy.routing) as tape, routed():
            logits = self.inner.add(contexts, rows, media)
        assert tape is not None
        chosen, widths = tape.stacked(), [len(ids) for ids in contexts]
        if chosen.shape[0] == sum(widths):  # one after another
            self.book.note(self.joining, chosen.split(widths))
        else:  # side by side, padded on the left
            padded = chosen.view(len(contexts), -1, *chosen.shape[1:])
            ends = [row[row.shape[0] - width :] for row, width in zip(padded, widths, strict=True)]
            self.book.note(self.joining, ends)
        return logits

    def keep(self, rows: Tensor) -> None:
        """See :meth:`Decoder.keep`."""
        self.inner.keep(rows)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See :meth:`Decoder.step`."""
        with recording(self.policy.routing) as tape, routed():
            logits = self.inner.step(tokens, positions)
        assert tape is not None
        self.book.responses[self.slots, self.steps] = tape.stacked().to(self.book.responses.dtype)
        return logits
