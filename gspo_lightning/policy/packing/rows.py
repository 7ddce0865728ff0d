"""Row: a sequence of a rollout that goes through the model, between a rollout and a micro-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.types import Rollout

SHORTEST = 16
"""Fewest tokens of a common prefix that are worth another attention kernel per layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence of a rollout: a context, and the tokens after it, some of them chosen by the policy.

    A row is a view. Everything per token stays in the rollout, whose tokens ``start`` to ``end`` are those of the row.

    Args:
        of: the rollout.
        context: token ids that the policy read before the first of them.
        start: position of the row's first token in the rollout.
        end: position after its last one.
        routed: position of its first experts among the rollout's.
    """

    of: Rollout
    context: tuple[int, ...]
    start: int
    end: int
    routed: int = 0

    def own(self, values: Tensor) -> Tensor:
        """Return the row's part of a tensor [T, ...] with one entry per token of the rollout."""
        return values[self.start : self.end]

    @property
    def token_ids(self) -> Tensor:
        """Token ids after the context, int64."""
        return self.own(self.of.token_ids)

    @property
    def trained(self) -> Tensor:
        """Mask of the tokens that are trained: those that the policy chose, if the rollout takes part; bool."""
        absent = self.of.reward is None or self.of.masked
        mask = self.own(self.of.response_mask)
        return torch.zeros_like(mask) if absent else mask

    @property
    def routes(self) -> Tensor | None:
        """Experts chosen for each token that was forwarded, [context + T - 1, L, k], if the rollout has them."""
        routes = self.of.routes
        return None if routes is None else routes[self.routed : self.routed + self.length - 1]

    @property
    def size(self) -> int:
        """Tokens that follow the context."""
        return self.end - self.start

    @property
    def length(self) -> int:
        """Tokens of the whole sequence, context included."""
        return len(self.context) + self.size


def rows_of(rollouts: Iterable[Rollout | Row]) -> list[Row]:
    """Return the rows of rollouts, in order; a row stands for itself."""
    return [row for one in rollouts for row in ((one,) if isinstance(one, Row) else _rows(one))]


def _rows(rollout: Rollout) -> list[Row]:
    if not rollout.row_ends:
        return [Row(rollout, rollout.prompt.token_ids, 0, len(rollout.token_ids))]
    found: list[Row] = []
    start = routed = 0
    for context, end in zip(rollout.contexts, rollout.row_ends, strict=True):
        found.append(Row(rollout, context, start, end, routed))
        start, routed = end, routed + found[-1].length - 1
    return found


def shares(rows: Sequence[Row]) -> Tensor | None:
    """Return each row's share of its rollout's trained tokens, [N] float32; None if every rollout has a single row."""
    if not any(row.of.row_ends for row in rows):
        return None
    counts = [(int(row.trained.sum()), row.of.length) for row in rows]
    return torch.tensor([own / whole if own else 0.0 for own, whole in counts], dtype=torch.float32)


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
    differ = next((i for i, (one, other) in enumerate(pairs) if one != other), len(min(each)))
    found = min(differ, min(map(len, each)) - 1)
    return found if found >= SHORTEST else 0


def row_hash(context: Sequence[int], response: Tensor) -> str:
    """Return a short hash of a row's token ids, the same in every process."""
    ids = torch.cat([torch.tensor(context, dtype=torch.int64), response.to("cpu", torch.int64)])
    return hashlib.blake2b(ids.numpy().tobytes(), digest_size=8).hexdigest()


def store(name: str, found: Iterable[tuple[Row, Tensor]]) -> None:
    """Store what was computed for each token of rows in a field of their rollouts.

    Args:
        name: of the field, a tensor [T].
        found: every row of each rollout, in any order, with its values; padding beyond a row's tokens is dropped.

    Raises:
        ValueError: a row of a rollout is missing: its tokens would pass for others.
    """
    by_rollout: dict[int, list[tuple[Row, Tensor]]] = {}
    for row, values in found:
        by_rollout.setdefault(id(row.of), []).append((row, values[: row.size]))
    for own in by_rollout.values():
        own.sort(key=lambda pair: pair[0].start)
        rollout, whole = own[0][0].of, torch.cat([values for _, values in own])
        if len(whole) != len(rollout.token_ids):
            raise ValueError(f"{len(whole)} {name} for {len(rollout.token_ids)} tokens: a row of a rollout is missing")
        setattr(rollout, name, whole)
