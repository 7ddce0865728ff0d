"""Context parallelism: neighbouring ranks compute parts of the tokens of the same rows, and meet in attention.

Everything but attention is computed token by token, so each rank of a group keeps 1/N of a micro-batch's packed tokens.
Attention goes through two all-to-alls per layer: each rank gets all tokens of 1/N of the heads, attends by the plan of
the whole micro-batch (its masks are unchanged), and gets all heads of its own tokens back (DeepSpeed-Ulysses, Jacobs et
al., arXiv 2309.14509). Log-probabilities return to the rank that has the rows.

Every rank keeps its own rows, losses and metrics: the ranks of a group take turns, and all of them compute the
micro-batch of the one whose turn it is. The gradients of a rank are those of the tokens that it computed, and their sum
over all ranks is the gradient of all losses, as without a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from gspo_lightning.core.distributed import gather_rows, rank_and_world
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.attention import PackedLayout, Plan, attention_plan, with_plan
from gspo_lightning.policy.states import States


class _RankRows(NamedTuple):
    """Facts about a rank's micro-batch that decide a packed layout, on the host."""

    weight: float
    ids: Tensor
    common_prefix: int
    prompt_lengths: Tensor
    response_lengths: Tensor
    prompt_index: Tensor | None


class ContextGroup:
    """Group of neighbouring ranks that compute the same rows.

    Args:
        group: the process group, of two or more ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def exchange(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows of ``values`` to the ranks of the group and return what they sent, by rank; with gradient.

        Args:
            values: [sum of ``sent``, ...].
            sent: number of rows for each rank, in order.
            received: number of rows from each rank.
        """
        return exchanged(values, sent, received, self.group)

    def turns(self, count: int, device: torch.device) -> list[int | None]:
        """Return the number of this rank's micro-batch in each forward pass, None while another rank has its turn.

        Every rank of the run gets a list of the same length. A collective.

        Args:
            count: number of this rank's micro-batches.
            device: of the collective.
        """
        rank, world = rank_and_world()
        counts = gather_rows(torch.tensor([count], device=device)).view(world // self.size, self.size)
        before = int(counts[rank // self.size, : self.rank].sum())
        after = int(counts.sum(1).max()) - before - count
        return [*[None] * before, *range(count), *[None] * after]

    def join(self, batch: MicroBatch) -> tuple[MicroBatch, Tensor]:
        """Return the rows of the group's micro-batches of weight above 0, on the host; a collective.

        Without any, the first rank's filler is returned.

        Returns:
            N rows with ids and lengths alone, and the rank in the group [N] that has each.
        """
        rank_rows = _RankRows(batch.weight, batch.input_ids.cpu(), batch.common_prefix, *batch.on_host())
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, rank_rows, group=self.group)
        parts = {rank: rows for rank, rows in enumerate(gathered) if rows.weight > 0} or {0: gathered[0]}
        width = max(rows.ids.shape[1] for rows in parts.values())
        padded_ids = []
        prompt_numbers = []
        prompts = 0  # numbered before, over the ranks
        owners = []
        for rank, rows in parts.items():
            count = len(rows.ids)
            padded_ids.append(pad(rows.ids, (0, width - rows.ids.shape[1])))
            index = torch.arange(count) if rows.prompt_index is None else rows.prompt_index
            prompt_numbers.append(index + prompts)
            prompts = int(prompt_numbers[-1].max()) + 1
            owners.append(torch.full((count,), rank))
        response_lengths = torch.cat([rows.response_lengths for rows in parts.values()])
        total = len(response_lengths)
        joint = MicroBatch(
            torch.cat(padded_ids),
            torch.cat([rows.prompt_lengths for rows in parts.values()]),
            response_lengths,
            torch.zeros(total, int(response_lengths.max()), dtype=torch.bool),
            torch.zeros(total),
            prompt_index=torch.cat(prompt_numbers),
            # ranks have prefixes of their own: only one that has all rows may share its prefix
            common_prefix=next(iter(parts.values())).common_prefix if len(parts) == 1 else 0,
        )
        return joint, torch.cat(owners)

    def states(self, backbone: nn.Module, batch: MicroBatch, *, shares_prefix: bool) -> States:
        """Return the states of this rank's tokens of the group's micro-batches; a collective.

        What is computed from each of them goes to the rank that has the row (:attr:`States.collect`).

        Args:
            backbone: a decoder whose attention follows plans.
            batch: rows of this rank; with weight 0 it only helps to compute those of another.
            shares_prefix: see :attr:`gspo_lightning.policy.policy.Policy.shares_prefix`.
        """
        device = batch.input_ids.device
        joint, owners = self.join(batch)
        layout = PackedLayout.of(joint, joint.common_prefix if shares_prefix else 0)
        plan = attention_plan(layout.segments, layout.crossings, layout.longest, device, (), layout.prefix)
        tokens = len(layout.token_ids)
        share = -(-tokens // self.size)
        first = self.rank * share
        ids, positions = (
            pad(x, (0, share * self.size - tokens))[None, first : first + share].to(device)
            for x in (layout.token_ids, layout.positions)
        )
        with with_plan(backbone, UlyssesPlan(plan, self, tokens)) as options:
            hidden = backbone(input_ids=ids, position_ids=positions, **options).last_hidden_state.squeeze(0)
        computed_by = layout.predicts // share
        owner = owners[layout.rows]
        here = computed_by == self.rank  # sorted by owner, like all response tokens of a layout
        returned = (owner == self.rank).nonzero().squeeze(1)  # tokens of this rank's rows, by the rank that sends them
        returned = returned[computed_by[returned].argsort(stable=True)]
        sent = torch.bincount(owner[here], minlength=self.size).tolist()
        received = torch.bincount(computed_by[returned], minlength=self.size).tolist()
        first_row = int((owners < self.rank).sum())
        return States(
            hidden[(layout.predicts[here] - first).to(device)],
            layout.targets[here].to(device),
            (layout.rows[returned] - first_row).to(device),
            layout.steps[returned].to(device),
            partial(self.exchange, sent=sent, received=received),
        )


def heads_of_ranks(heads: tuple[int, int], size: int) -> tuple[list[int], list[int]]:
    """Return the number of query heads of each rank, and of key and value heads.

    Key and value heads are repeated if there are fewer than ranks. If heads do not divide, some ranks have one more,
    and each query head has key and value heads of its own.

    Args:
        heads: number of query heads, at least ``size``, and of key and value heads.
        size: number of ranks.

    >>> heads_of_ranks((8, 4), 2), heads_of_ranks((8, 2), 4), heads_of_ranks((9, 3), 2)
    (([4, 4], [2, 2]), ([2, 2, 2, 2], [1, 1, 1, 1]), ([5, 4], [5, 4]))
    """
    queries, keys = heads
    if queries % size == 0 and (keys % size == 0 or size % keys == 0):
        return [queries // size] * size, [max(keys, size) // size] * size
    uneven = [queries // size + (rank < queries % size) for rank in range(size)]
    return uneven, uneven


class UlyssesPlan:
    """Attention plan of M packed tokens of which each rank of a group has an equal part, the last ones padded.

    Args:
        plan: of all M tokens.
        group: of no more ranks than there are query heads.
        tokens: M.
    """

    def __init__(self, plan: Plan, group: ContextGroup, tokens: int) -> None:
        self.plan = plan
        self.group = group
        self.tokens = tokens
        self.longest = plan.longest

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend with this rank's [m, H, d] queries over the [m, K, d] keys and values of every rank; [m, H, d]."""
        rank = self.group.rank
        size = self.group.size
        count = len(query)  # tokens of each rank
        query_heads, key_heads = heads_of_ranks((query.shape[1], key.shape[1]), size)
        key, value = (x.repeat_interleave(sum(key_heads) // x.shape[1], dim=1) for x in (key, value))

        # to all tokens of this rank's heads: queries, keys and values of a token travel side by side
        inputs = (query, query_heads), (key, key_heads), (value, key_heads)
        by_rank = zip(*(x.split(heads, dim=1) for x, heads in inputs), strict=True)
        parts = [torch.cat([x.flatten(1) for x in rank_inputs], dim=1).flatten() for rank_inputs in by_rank]
        sent = [len(part) for part in parts]
        all_tokens = self.group.exchange(torch.cat(parts), sent, [sent[rank]] * size).view(size * count, -1)
        shapes = [(heads[rank], x.shape[2]) for x, heads in inputs]
        columns = all_tokens[: self.tokens].split([heads * width for heads, width in shapes], dim=1)
        q, k, v = (x.unflatten(1, shape) for x, shape in zip(columns, shapes, strict=True))
        out = self.plan.attend(layer, q, k, v, scaling)

        # and back to all heads of this rank's tokens
        out = pad(out, (0, 0, 0, 0, 0, count * size - self.tokens)).flatten()
        width = value.shape[2]
        received = [count * heads * width for heads in query_heads]
        by_heads = self.group.exchange(out, [len(out) // size] * size, received).split(received)
        return torch.cat([x.view(count, -1, width) for x in by_heads], dim=1)


def exchanged(values: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Return what the ranks of a group send, see :meth:`ContextGroup.exchange`."""
    incoming: Tensor = _Exchange.apply(values, list(sent), list(received), group)  # type: ignore[no-untyped-call]
    return incoming


class _Exchange(torch.autograd.Function):
    """All-to-all along the first dimension; its gradient is the all-to-all back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes = sent, received, group
        return _all_to_all(values, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sent, received, group = ctx.sizes
        return _all_to_all(gradient, received, sent, group), None, None, None


def _all_to_all(values: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = values.new_empty(sum(received), *values.shape[1:])
    dist.all_to_all_single(out, values.contiguous(), received, sent, group=group)
    return out
