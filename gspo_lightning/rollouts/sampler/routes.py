"""Expert routes of a mixture of experts during sampling, for Routing Replay (R3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from gspo_lightning.core.types import Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Routing, index_dtype, record_routers, routed
from gspo_lightning.rollouts.sampler.admission_queue import Block, Prefill
from gspo_lightning.rollouts.sampler.decoding import Decoder, SharedDecoder


class RouteBook:
    """Routes of contexts and responses in one call of a sampler.

    Args:
        context_of: N numbers: the context of each response. Responses with the same context share its routes.
        tokens: maximum T of a response.
        routing: the policy's routing.
        device: device of the responses' routes.
    """

    def __init__(self, context_of: Sequence[int], tokens: int, routing: Routing, device: torch.device) -> None:
        self.context_of = context_of
        self.contexts: dict[int, Tensor] = {}
        """Routes [c, L, k] of each context, by its number."""
        shape = (len(context_of), tokens, routing.layers, routing.top_k)
        self.responses = torch.zeros(shape, dtype=index_dtype(routing.experts), device=device)

    def note(self, blocks: Sequence[Block], chosen: Sequence[Tensor]) -> None:
        """Record the experts [c, L, k] of joining rows: for a context, or for a context and a part of a response."""
        for block, experts in zip(blocks, chosen, strict=True):
            routes = experts.to(self.responses.dtype)
            if block.step:
                for slot in block.slots:
                    self.responses[slot, block.step - 1] = routes[-1]
            else:
                self.contexts[self.context_of[block.slots[0]]] = routes

    def fill(self, rollouts: Mapping[int, Rollout]) -> None:
        """Set the routes of responses; the last token of a response was never forwarded. An empty response gets none.

        One copy brings all of them to the host.
        """
        rows = [(self.context_of[row], row, rollout) for row, rollout in rollouts.items() if len(rollout.token_ids)]
        if not rows:
            return
        numbers = list(dict.fromkeys(number for number, _, _ in rows))
        parts = [self.contexts[number] for number in numbers]
        parts += [self.responses[row, : len(rollout.token_ids) - 1] for _, row, rollout in rows]
        here = torch.cat(parts).cpu().split([len(part) for part in parts])
        contexts = dict(zip(numbers, here, strict=False))
        for (number, _, rollout), kept in zip(rows, here[len(numbers) :], strict=True):
            rollout.routes = torch.cat([contexts[number], kept])


class RecordingDecoder(Decoder):
    """Decoder that records the routes of its forward passes in a book; the sampler sets the rows before each pass."""

    def __init__(self, inner: Decoder, book: RouteBook, policy: Policy) -> None:
        super().__init__(policy)
        self.inner = inner
        self.book = book
        self.may_grow = inner.may_grow
        if isinstance(inner, SharedDecoder):
            inner.graphs = None  # a replay calls no hook
        self.slots = self.steps = torch.empty(0, dtype=torch.int64)
        """For the next :meth:`step`, each [R]: the response of each row, and the number of the token that is fed."""
        self.joining: Sequence[Block] = ()
        """Blocks of the next :meth:`add`."""

    @override
    def add(self, prefill: Prefill) -> Tensor:
        with record_routers(self.policy.routing) as recording, routed():
            logits = self.inner.add(prefill)
        assert recording is not None
        chosen = recording.stacked()
        widths = [len(ids) for ids in prefill.contexts]
        if chosen.shape[0] == sum(widths):  # packed
            self.book.note(self.joining, chosen.split(widths))
        else:  # left-padded
            padded = chosen.view(len(widths), -1, *chosen.shape[1:])
            ends = [row[row.shape[0] - width :] for row, width in zip(padded, widths, strict=True)]
            self.book.note(self.joining, ends)
        return logits

    @override
    def keep(self, rows: Tensor) -> None:
        self.inner.keep(rows)

    @override
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        with record_routers(self.policy.routing) as recording, routed():
            logits = self.inner.step(tokens, positions)
        assert recording is not None
        self.book.responses[self.slots, self.steps] = recording.stacked().to(self.book.responses.dtype)
        return logits
