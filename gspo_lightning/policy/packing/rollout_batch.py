"""Rollout batch: the rollouts of an iteration on this rank, their rows, and the mini-batches that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gspo_lightning.core.types import MicroBatch, MiniBatch, Rollout
from gspo_lightning.policy.packing.batches import (
    RowWeights,
    advantages_of,
    cut,
    filler,
    group_numbers,
    make_micro_batch,
    with_no_gradient,
)
from gspo_lightning.policy.packing.deal import Deal, deal_rows
from gspo_lightning.policy.packing.rows import Row, common_prefix, row_hash, rows_of


@dataclass(slots=True)
class RolloutBatch:
    """Groups of rollouts, the rows that they were cut into, and where each row was dealt.

    Args:
        groups: P groups of G rollouts.
        dealt: the rows of each micro-batch of each mini-batch, in the order of its tensors; a mini-batch without a row
            on this rank has none here, and a filler in ``mini_batches``.
        mini_batches: the tensors of ``dealt``; a step that computes more of them replaces the list.
    """

    groups: list[list[Rollout]]
    dealt: list[list[list[Row]]]
    mini_batches: list[MiniBatch]

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[Rollout]],
        *,
        mini_batches: int,
        max_tokens: int,
        packed: bool = False,
        shares_prefix: bool = False,
        deal: Deal = "groups",
        base: int = 0,
        iteration: int = 0,
        version: int | None = None,
        sources: Sequence[str] = (),
        accuracy_reward: str = "",
        weigh: RowWeights = "rollout",
    ) -> RolloutBatch:
        """Deal rollouts to ``mini_batches`` mini-batches, cut their rows into micro-batches, and build those.

        Args:
            groups: P groups of G rollouts; missing or masked rollouts keep their rows with empty response masks.
            mini_batches: number of mini-batches; must divide P.
            max_tokens: budget of one micro-batch, see :func:`gspo_lightning.policy.packing.batches.cut`.
            packed: for a policy that shares prompts and needs no padding (``Policy.packed``).
            shares_prefix: for one that also computes the first tokens of all prompts once (``Policy.shares_prefix``).
            deal: see :func:`gspo_lightning.policy.packing.deal.deal_rows`.
            base: random stream of a shuffled deal.
            iteration: number of the rollout batch, recorded in each mini-batch.
            version: the policy's present version, see :func:`gspo_lightning.policy.packing.batches.make_micro_batch`.
            sources: names of a mixture's sources.
            accuracy_reward: name of the reward that decides which responses are correct.
            weigh: weights of rows in the loss.

        Raises:
            UserError: P is not a multiple of ``mini_batches``, or a row is longer than the budget.
        """
        shares = deal_rows(groups, mini_batches=mini_batches, deal=deal, base=base)
        prefix = 0
        if shares_prefix and not any(group[0].prompt.media for group in groups):
            prefix = common_prefix({row.context for group in groups for row in rows_of(group)})
        dealt = [cut(rows_of(share), max_tokens, packed, prefix) if share else [] for share in shares]
        made = [
            [
                make_micro_batch(rows, version, sources, accuracy_reward, numbers, weigh, prefix)
                for rows, numbers in zip(parts, group_numbers(parts), strict=True)
            ]
            for parts in dealt
        ]
        like = next(part for parts in made for part in parts)
        batches = [MiniBatch(parts or [filler(like)], i, iteration) for i, parts in enumerate(made)]
        return cls([list(group) for group in groups], dealt, batches)

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts of this rank, group by group."""
        return [rollout for group in self.groups for rollout in group]

    def parts(self) -> Iterator[list[tuple[MicroBatch, Sequence[Row]]]]:
        """Yield the micro-batches of each mini-batch with their rows; a filler has none."""
        for batch, parts in zip(self.mini_batches, self.dealt, strict=True):
            yield list(zip(batch.micro_batches, parts or [list[Row]()], strict=True))

    def fingerprints(self) -> dict[str, list[Any]]:
        """Return ``<prompt>/<sample>``, or ``.../<row>`` for each of several rows -> [hash of token ids, reward]."""
        found: dict[str, list[Any]] = {}
        for rollout in self.rollouts:
            name, rows = f"{rollout.prompt.id}/{rollout.sample}", rows_of((rollout,))
            for number, row in enumerate(rows):
                of_row = f"{name}/{number}" if rollout.rows else name
                found[of_row] = [row_hash(row.context, row.token_ids), rollout.reward]
        return found

    def take_advantages(self, *, mark: bool = False) -> None:
        """Put the present advantages of the rollouts into the mini-batches.

        Args:
            mark: mark rows whose gradient is 0 (:mod:`gspo_lightning.policy.no_gradient`).
        """
        self.mini_batches = [
            replace(batch, micro_batches=[_with_advantages(part, rows, mark) for part, rows in parts])
            for batch, parts in zip(self.mini_batches, self.parts(), strict=True)
        ]


def _with_advantages(part: MicroBatch, rows: Sequence[Row], mark: bool) -> MicroBatch:
    if not rows:
        return part
    unmarked = replace(part, advantages=advantages_of(rows, part.response_mask.shape[1]), no_gradient=None)
    return with_no_gradient(unmarked) if mark else unmarked
