"""Row: a sequence of a rollout that goes through the model, between a rollout and a micro-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.rows import RowSpan
from gspo_lightning.core.types import Rollout

SHORTEST = 16
"""Fewest tokens of a common prefix that are worth another attention kernel per layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence of a rollout: a context, and the tokens after it, some of them chosen by the policy.

    A row is a view: everything per token stays in the rollout.
    """

    rollout: Rollout
    """Rollout that the row is of: its reward, advantage and tensors."""
    span: RowSpan
    """Context of the row, and the place of its tokens in the rollout's tensors."""

    def slice(self, values: Tensor) -> Tensor:
        """Return the row's part of a tensor [T, ...] with one entry per token of the rollout."""
        return values[self.span.start : self.span.end]

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids that the policy read before the row's first token."""
        return self.span.context

    @property
    def token_ids(self) -> Tensor:
        """Token ids after the context, int64."""
        return self.slice(self.rollout.token_ids)

    @property
    def trained(self) -> Tensor:
        """Mask of the tokens that are trained: those that the policy chose, if the rollout takes part; bool."""
        absent = self.rollout.reward is None or self.rollout.masked
        mask = self.slice(self.rollout.response_mask)
        return torch.zeros_like(mask) if absent else mask

    @property
    def routes(self) -> Tensor | None:
        """Experts chosen for each token that was forwarded, [context + T - 1, L, k], if the rollout has them."""
        routes = self.rollout.routes
        first = self.span.first_route
        return None if routes is None else routes[first : first + self.length - 1]

    @property
    def size(self) -> int:
        """Tokens that follow the context."""
        return self.span.size

    @property
    def length(self) -> int:
        """Tokens of the whole sequence, context included."""
        return self.span.length


def rows_of(rollouts: Iterable[Rollout | Row]) -> list[Row]:
    """Return the rows of rollouts, in order; a row stands for itself."""
    rows: list[Row] = []
    for item in rollouts:
        if isinstance(item, Row):
            rows.append(item)
        else:
            spans = item.rows or RowSpan.consecutive([item.prompt.token_ids], [len(item.token_ids)])
            rows += [Row(item, span) for span in spans]
    return rows


def shares(rows: Sequence[Row]) -> Tensor | None:
    """Return each row's share of its rollout's trained tokens, [N] float32; None if every rollout has a single row."""
    if not any(row.rollout.rows for row in rows):
        return None
    trained = [int(row.trained.sum()) for row in rows]
    return torch.tensor(
        [count / row.rollout.length if count else 0.0 for row, count in zip(rows, trained, strict=True)],
        dtype=torch.float32,
    )


def common_prefix(contexts: Collection[Sequence[int]]) -> int:
    """Return the number of first tokens that all contexts share, such as those of a system prompt, or 0 if it is small.

    It is small below :data:`SHORTEST`, or with one context only. Each context keeps one token of its own, which
    predicts the first token of a response.

    >>> system = range(20)
    >>> common_prefix([(*system, 7, 1), (*system, 7, 2)]), common_prefix([(*system, 7), (*system,)])
    (21, 19)
    >>> common_prefix([(1, 2), (1, 3)]), common_prefix([(*system,)])
    (0, 0)
    """
    if len(contexts) < 2:
        return 0
    each = {*map(tuple, contexts)}
    pairs = zip(min(each), max(each), strict=False)  # those between share at least as much
    differ = next((i for i, (a, b) in enumerate(pairs) if a != b), len(min(each)))
    shared = min(differ, min(map(len, each)) - 1)
    return shared if shared >= SHORTEST else 0


def row_hash(context: Sequence[int], response: Tensor) -> str:
    """Return a short hash of a row's token ids, the same in every process."""
    ids = torch.cat([torch.tensor(context, dtype=torch.int64), response.to("cpu", torch.int64)])
    return hashlib.blake2b(ids.numpy().tobytes(), digest_size=8).hexdigest()


def store(name: str, computed: Iterable[tuple[Row, Tensor]]) -> None:
    """Store what was computed for each token of rows in a field of their rollouts.

    Args:
        name: of the field, a tensor [T].
        computed: every row of each rollout, in any order, with its values; padding beyond a row's tokens is dropped.

    Raises:
        ValueError: a row of a rollout is missing: its tokens would pass for others.
    """
    by_rollout: dict[int, list[tuple[Row, Tensor]]] = {}
    for row, values in computed:
        by_rollout.setdefault(id(row.rollout), []).append((row, values[: row.size]))
    for pairs in by_rollout.values():
        pairs.sort(key=lambda pair: pair[0].span.start)
        rollout = pairs[0][0].rollout
        whole = torch.cat([values for _, values in pairs])
        if len(whole) != len(rollout.token_ids):
            raise ValueError(f"{len(whole)} {name} for {len(rollout.token_ids)} tokens: a row of a rollout is missing")
        setattr(rollout, name, whole)
