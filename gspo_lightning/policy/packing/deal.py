"""Deal the responses of a rollout batch to mini-batches.

A group's advantages sum to 0, so its rows pull against each other. A mini-batch with a few rows of every group is
therefore closer to the gradient of the whole rollout batch than one with a few whole groups (docs/dealing.md). A group
stays on the rank that sampled it. The mini-batch of a row depends only on its place in the iteration, never on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.core.types import Rollout

Deal = Literal["stratified", "shuffled", "groups"]
"""``stratified``: equal parts of every group; ``shuffled``: rows in random order; ``groups``: whole groups."""

DEFAULT_DEAL: Deal = "stratified"


def deal_stream(seed: int, iteration: int) -> int:
    """Return the random stream of an iteration's ``shuffled`` deal."""
    return stream(seed, Purpose.DEAL, iteration)


def deal_rows(
    groups: Sequence[Sequence[Rollout]], *, mini_batches: int, deal: Deal = DEFAULT_DEAL, base: int = 0
) -> list[list[Rollout]]:
    """Return the rows of each mini-batch on this rank, in the order of the groups.

    The groups of an iteration form ``mini_batches`` consecutive blocks. ``groups`` trains on one block at a time.
    ``stratified`` deals the G rows of every group like cards; those of block b begin at mini-batch b. So every
    mini-batch has the same number of rows on every rank, even if G is not a multiple of ``mini_batches`` or is smaller.
    ``shuffled`` cuts a permutation of the rows of all ranks into equal parts; a rank may have few or no rows of a part.

    Args:
        groups: this rank's, of G rollouts each, in the order of
            :meth:`gspo_lightning.data.prompts.order.PromptOrder.prompts_for_rank`.
        mini_batches: number of mini-batches; must divide the number of groups.
        deal: one of :data:`Deal`.
        base: :func:`deal_stream`, of the permutation of ``shuffled``.

    Raises:
        UserError: the number of groups is not a multiple of ``mini_batches``.
    """
    if len(groups) % mini_batches:
        raise UserError(
            "data.minibatches_per_rollout",
            f"{len(groups)} groups per rank cannot be dealt evenly to {mini_batches} mini-batches",
            fix="make prompts_per_rollout a multiple of minibatches_per_rollout times the number of ranks",
        )
    block = len(groups) // mini_batches
    places = _shuffled_places(groups, mini_batches, base) if deal == "shuffled" else []
    dealt: list[list[Rollout]] = [[] for _ in range(mini_batches)]
    for i, group in enumerate(groups):
        for k, rollout in enumerate(group):
            if deal == "shuffled":
                place = places[i][k]
            else:
                place = (i // block + (k if deal == "stratified" else 0)) % mini_batches
            dealt[place].append(rollout)
    return dealt


def _shuffled_places(groups: Sequence[Sequence[Rollout]], mini_batches: int, base: int) -> list[list[int]]:
    """Return the mini-batch of every row: a permutation of the rows of all ranks, cut into equal parts."""
    rank, world = rank_and_world()
    size = len(groups[0])
    total = len(groups) * world
    rows = total * size
    places = permutation(base, rows) // (rows // mini_batches)
    # group i of this rank is group i * world + rank of the iteration
    rank_places: list[list[int]] = places.view(total, size)[rank::world].tolist()
    return rank_places


def prompts_per_update(deal: Deal, *, prompts: int, group_size: int, mini_batches: int) -> float:
    """Return the number of distinct prompts in a mini-batch; for ``shuffled`` approximately the average.

    >>> deals = ("groups", "stratified", "shuffled")
    >>> [round(prompts_per_update(deal, prompts=32, group_size=8, mini_batches=4), 1) for deal in deals]
    [8.0, 32.0, 28.8]
    """
    if deal == "groups":
        return prompts / mini_batches
    if deal == "stratified":
        return prompts * min(1.0, group_size / mini_batches)
    return prompts * (1 - (1 - 1 / mini_batches) ** group_size)
