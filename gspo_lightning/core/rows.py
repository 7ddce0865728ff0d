"""Rows of a rollout: sequences that go through the model, each a context and the tokens after it.

A plain response has one row, after its prompt. A rollout of an agent has a row for every branch of its conversations.
The tensors of a rollout hold the tokens of all its rows, one row after another, because credit (returns, turns, steps)
runs over them all; a row's part of them is a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SampledRow:
    """A row as it was sampled, T tokens after a context."""

    context: tuple[int, ...]
    """Token ids that the policy read before the row's first token; one or more."""
    token_ids: Tensor
    """[T] int64, T >= 1: tool output and other turns included."""
    response_mask: Tensor
    """[T] bool, True on the tokens that the policy chose."""
    logprobs: Tensor | None = None
    """[T] float32, nats, 0 where the policy did not choose; None if the source has none."""
    versions: Tensor | None = None
    """[T] int64: optimizer steps of the weights that sampled each token; None: those of the rollout."""
    routes: Tensor | None = None
    """[context + T - 1, L, k]: the k experts that the sampler chose in L layers, if requested."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Place of a row in the tensors of its rollout."""

    context: tuple[int, ...]
    """Token ids that the policy read before the row's first token; one or more."""
    start: int
    """Position of the row's first token among the rollout's."""
    end: int
    """Position after its last one."""
    first_route: int = 0
    """Position of its first entry in ``Rollout.routes``, which have one for every token of a row but the last."""

    @property
    def size(self) -> int:
        """Tokens that follow the context."""
        return self.end - self.start

    @property
    def length(self) -> int:
        """Tokens of the whole sequence, context included."""
        return len(self.context) + self.size

    @classmethod
    def consecutive(cls, contexts: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> tuple[RowSpan, ...]:
        """Return the places of rows that follow one another, from the context and the number of tokens of each."""
        spans: list[RowSpan] = []
        start = 0
        first_route = 0
        for context, size in zip(contexts, sizes, strict=True):
            spans.append(cls(context, start, start + size, first_route))
            start += size
            first_route += len(context) + size - 1
        return tuple(spans)


class RowFields(TypedDict):
    """Fields of a rollout that hold its rows."""

    token_ids: Tensor
    response_mask: Tensor
    logprobs: Tensor | None
    versions: Tensor | None
    routes: Tensor | None
    rows: tuple[RowSpan, ...]


def join_rows(rows: Sequence[SampledRow]) -> RowFields:
    """Return the fields of a rollout with these rows: ``Rollout(prompt, sample, **join_rows(rows), ...)``.

    What some row does not have (log-probabilities, versions, routes), the rollout does not have.

    >>> rows = [SampledRow((5, 6), torch.tensor([i]), torch.tensor([True])) for i in (1, 2)]
    >>> joined = join_rows(rows)
    >>> joined["token_ids"].tolist(), [(span.start, span.first_route) for span in joined["rows"]], joined["logprobs"]
    ([1, 2], [(0, 0), (1, 2)], None)
    """
    return {
        "token_ids": torch.cat([row.token_ids for row in rows]),
        "response_mask": torch.cat([row.response_mask for row in rows]),
        "logprobs": _joined([row.logprobs for row in rows]),
        "versions": _joined([row.versions for row in rows]),
        "routes": _joined([row.routes for row in rows]),
        "rows": RowSpan.consecutive([row.context for row in rows], [len(row.token_ids) for row in rows]),
    }


def check_rows(rows: Sequence[RowSpan], tokens: int) -> None:
    """Check that rows follow one another, each after a context, and end with the rollout.

    Raises:
        ValueError: they do not; gives their places.
    """
    following = RowSpan.consecutive([row.context for row in rows], [row.size for row in rows])
    have_tokens = all(row.context and row.size > 0 for row in rows)
    if rows and not (have_tokens and tuple(rows) == following and rows[-1].end == tokens):
        places = [(len(row.context), row.start, row.end, row.first_route) for row in rows]
        raise ValueError(f"rows must follow one another up to {tokens}, after contexts with tokens, got {places}")


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None
