"""Cut scored groups into mini-batches (one optimizer step each) and micro-batches (one forward pass each).

:mod:`gspo_lightning.packing.deal` chooses the rows of a mini-batch. Micro-batches keep its rows of one prompt together
under a token budget or, for a model that needs padding, hold rows of similar length. How a mini-batch is cut never
changes a loss or gradient, because denominators belong to the mini-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.errors import UserError
from gspo_lightning.metrics.sources import source_rows
from gspo_lightning.packing.deal import Deal, deal_rows
from gspo_lightning.types import MicroBatch, MiniBatch, Rollout

__all__ = [
    "batches_of",
    "cut_groups",
    "cut_micro_batches",
    "filler",
    "make_micro_batch",
    "make_mini_batches",
    "with_advantages",
]


def make_mini_batches(
    groups: Sequence[Sequence[Rollout]],
    *,
    mini_batches: int,
    max_tokens: int,
    order: Sequence[int] | None = None,
    iteration: int = 0,
    first_index: int = 0,
    packed: bool = False,
    version: int | None = None,
    deal: Deal = "groups",
) -> list[MiniBatch]:
    """Deal groups, or their rows, to ``mini_batches`` mini-batches of equal size.

    Args:
        groups: P groups of rollouts; missing or masked rollouts keep their row with an empty response mask.
        mini_batches: number of mini-batches; must divide P.
        max_tokens: budget of one micro-batch, see :func:`cut_micro_batches`.
        order: a permutation of ``range(P)``; the identity by default.
        iteration: number of the rollout batch, recorded in each mini-batch.
        first_index: index of the first mini-batch (later epochs over the same rollouts continue the count).
        packed: for a policy that shares prompts and needs no padding (``Policy.packed``).
        version: the policy's present version, see :func:`make_micro_batch`.
        deal: see :func:`gspo_lightning.packing.deal.deal_rows`.

    Raises:
        UserError: P is not a multiple of ``mini_batches``.
    """
    ordered = [groups[i] for i in (order if order is not None else range(len(groups)))]
    rows = cut_groups(ordered, mini_batches=mini_batches, max_tokens=max_tokens, packed=packed, deal=deal)
    return batches_of(rows, iteration=iteration, first_index=first_index, version=version)


def cut_groups(
    groups: Sequence[Sequence[Rollout]],
    *,
    mini_batches: int,
    max_tokens: int,
    packed: bool = False,
    deal: Deal = "groups",
    base: int = 0,
) -> list[list[list[Rollout]]]:
    """Assign rollouts to the micro-batches of each mini-batch; see :func:`make_mini_batches`.

    A mini-batch without a row on this rank has no micro-batch here (``shuffled`` only).

    Raises:
        UserError: P is not a multiple of ``mini_batches``.
    """
    dealt = deal_rows(groups, mini_batches=mini_batches, deal=deal, base=base)
    return [_cut(rollouts, max_tokens, packed) if rollouts else [] for rollouts in dealt]


def batches_of(
    rows: Sequence[Sequence[Sequence[Rollout]]],
    *,
    iteration: int = 0,
    first_index: int = 0,
    version: int | None = None,
    sources: Sequence[str] = (),
    accuracy_reward: str = "",
) -> list[MiniBatch]:
    """Build mini-batches from rollouts that :func:`cut_groups` has cut.

    A filler stands in for a mini-batch without a row on this rank. ``version``, ``sources`` and ``accuracy_reward`` are
    those of :func:`make_micro_batch`.
    """
    made = [[make_micro_batch(part, version, sources, accuracy_reward) for part in parts] for parts in rows]
    spare = next(part for parts in made for part in parts)
    return [
        MiniBatch(parts or [filler(spare)], index=first_index + i, iteration=iteration) for i, parts in enumerate(made)
    ]


def with_advantages(batches: Sequence[MiniBatch], rows: Sequence[Sequence[Sequence[Rollout]]]) -> list[MiniBatch]:
    """Return the mini-batches that :func:`batches_of` made of ``rows`` with the rollouts' present advantages."""
    return [
        replace(
            batch,
            micro_batches=[
                replace(part, advantages=_advantages(own, part.response_mask.shape[1]))
                for part, own in zip(batch.micro_batches, parts, strict=True)
            ],
        )
        if parts
        else batch
        for batch, parts in zip(batches, rows, strict=True)
    ]


def cut_micro_batches(
    rollouts: Sequence[Rollout], max_tokens: int, packed: bool = False, version: int | None = None
) -> list[MicroBatch]:
    """Cut rows into micro-batches of at most ``max_tokens``.

    Args:
        rollouts: rows of a mini-batch.
        max_tokens: budget. Padded: rows x the longest row. Packed: tokens of the distinct prompts and of all responses.
        packed: keep rows of a prompt together, so that they pay for it once; only a group larger than the budget is
            split. Loads are balanced. Otherwise rows of similar length stand together.
        version: the policy's present version, see :func:`make_micro_batch`.

    Raises:
        UserError: a single row is longer than the budget: it could never be trained on.
    """
    return [make_micro_batch(rows, version) for rows in _cut(rollouts, max_tokens, packed)]


def _cut(rollouts: Sequence[Rollout], max_tokens: int, packed: bool) -> list[list[Rollout]]:
    longest = max(_length(r) for r in rollouts)
    if longest > max_tokens:
        raise UserError(
            "data.max_tokens_per_micro_batch",
            f"is {max_tokens}, but one sequence has {longest} tokens",
            fix=f"use at least max_prompt_tokens + max_response_tokens (here {longest} or more)",
        )
    return _cut_groups(rollouts, max_tokens) if packed else _cut_rows(rollouts, max_tokens)


def _cut_rows(rollouts: Sequence[Rollout], max_tokens: int) -> list[list[Rollout]]:
    """Sort rows by length and cut them so that rows x longest row stays within the budget."""
    rows = sorted(rollouts, key=_length, reverse=True)  # a stable sort: equal lengths keep their order
    cuts: list[list[Rollout]] = [[]]
    width = _length(rows[0])
    for row in rows:
        if (len(cuts[-1]) + 1) * width > max_tokens:
            cuts.append([])
            width = _length(row)
        cuts[-1].append(row)
    return cuts


def _cut_groups(rollouts: Sequence[Rollout], max_tokens: int) -> list[list[Rollout]]:
    """Deal groups to as few micro-batches as possible, the longest first to the emptiest."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt.id, []).append(rollout)
    parts = [part for group in groups.values() for part in _split(group, max_tokens)]
    sizes = [_packed_size(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: -sizes[i])
    for count in range(-(-sum(sizes) // max_tokens), len(parts) + 1):
        loads = [0] * count
        owner = [0] * len(parts)
        for i in order:
            owner[i] = loads.index(min(loads))
            loads[owner[i]] += sizes[i]
        if max(loads) <= max_tokens:
            break
    return [list(chain.from_iterable(p for p, o in zip(parts, owner, strict=True) if o == i)) for i in range(count)]


def _split(group: list[Rollout], max_tokens: int) -> list[list[Rollout]]:
    """Return the group whole, or in parts if it is larger than the budget; each part repeats the prompt."""
    if _packed_size(group) <= max_tokens:
        return [group]
    prompt = len(group[0].prompt.token_ids)
    parts: list[list[Rollout]] = [[]]
    size = prompt
    for rollout in sorted(group, key=_length, reverse=True):
        if size + len(rollout.token_ids) > max_tokens:
            parts.append([])
            size = prompt
        parts[-1].append(rollout)
        size += len(rollout.token_ids)
    return parts


def _packed_size(rows: Sequence[Rollout]) -> int:
    return len(rows[0].prompt.token_ids) + sum(len(r.token_ids) for r in rows)


def _length(rollout: Rollout) -> int:
    return len(rollout.prompt.token_ids) + int(rollout.token_ids.shape[0])


def make_micro_batch(
    rollouts: Sequence[Rollout], version: int | None = None, sources: Sequence[str] = (), accuracy_reward: str = ""
) -> MicroBatch:
    """Build left-aligned rows: prompt, response, padding (id 0, masked by length, so its value is never read).

    ``version`` is the policy's present version: response tokens that an earlier version sampled are marked stale.
    ``sources`` are those of a mixture; ``accuracy_reward`` names the reward that decides which responses are correct.
    """
    prompts = torch.tensor([len(r.prompt.token_ids) for r in rollouts])
    responses = torch.tensor([r.token_ids.shape[0] for r in rollouts])
    width = int((prompts + responses).max())
    steps = int(responses.max())
    input_ids = torch.zeros(len(rollouts), width, dtype=torch.int64)
    mask = torch.zeros(len(rollouts), steps, dtype=torch.bool)
    has_logprobs = all(r.logprobs is not None for r in rollouts)
    behaviour = torch.zeros(len(rollouts), steps, dtype=torch.float32) if has_logprobs else None
    pieces = any(r.versions is not None for r in rollouts)
    stale = torch.zeros(len(rollouts), steps, dtype=torch.bool) if pieces else None
    for i, rollout in enumerate(rollouts):
        start, count = int(prompts[i]), int(responses[i])
        input_ids[i, :start] = torch.tensor(rollout.prompt.token_ids)
        input_ids[i, start : start + count] = rollout.token_ids
        if rollout.reward is not None and not rollout.masked:
            mask[i, :count] = rollout.response_mask
        if behaviour is not None and rollout.logprobs is not None:
            behaviour[i, :count] = rollout.logprobs
        if stale is not None and version is not None and rollout.versions is not None:
            stale[i, :count] = rollout.versions < version
    advantages = _advantages(rollouts, steps)
    numbers = {id_: i for i, id_ in enumerate(dict.fromkeys(r.prompt.id for r in rollouts))}
    index = torch.tensor([numbers[r.prompt.id] for r in rollouts])
    return MicroBatch(
        input_ids, prompts, responses, mask, advantages,
        behaviour_logprobs=behaviour, prompt_index=index, stale=stale, routes=_routes(rollouts, width - 1),
        sources=source_rows(rollouts, sources), segments=_segments(rollouts, steps),
        positive=torch.tensor([r.correct(accuracy_reward) for r in rollouts]),
        media=tuple(r.prompt.media for r in rollouts) if any(r.prompt.media for r in rollouts) else None,
    )  # fmt: skip


def _routes(rollouts: Sequence[Rollout], width: int) -> Tensor | None:
    """Return routes [N, width, L, k] if all rollouts have them, else None; padding has the first k experts."""
    known = [r.routes for r in rollouts if r.routes is not None]
    if len(known) < len(rollouts):
        return None
    layers, k = known[0].shape[1:]
    routes = torch.arange(k).to(known[0].dtype).expand(len(known), width, layers, k).clone()
    for row, own in zip(routes, known, strict=True):
        row[: own.shape[0]] = own
    return routes


def _segments(rollouts: Sequence[Rollout], width: int) -> Tensor | None:
    """Return each token's step [N, width]; a step ends wherever any reward ends one. None if no steps were scored."""
    if not any(rollout.steps for rollout in rollouts):
        return None
    segments = torch.zeros(len(rollouts), width, dtype=torch.int64)
    for row, rollout in zip(segments, rollouts, strict=True):
        for end in {end for steps in rollout.steps.values() for end, _ in steps}:
            row[end : len(rollout.token_ids)] += 1
    return segments.clamp(max=max(width - 1, 0))


def _advantages(rollouts: Sequence[Rollout], steps: int) -> Tensor:
    """Return advantages [N] float32, or [N, T] if any row has one for each token."""
    if all(r.token_advantages is None for r in rollouts):
        return torch.tensor([r.advantage for r in rollouts], dtype=torch.float32)
    values = torch.zeros(len(rollouts), steps, dtype=torch.float32)
    for i, rollout in enumerate(rollouts):
        own = rollout.token_advantages
        values[i, : len(rollout.token_ids)] = rollout.advantage if own is None else own
    return values


def filler(like: MicroBatch) -> MicroBatch:
    """Return a one-row micro-batch of weight 0, which keeps a rank with fewer micro-batches in step with the others.

    Every tensor is the first row of ``like``, but mask and advantages are zeros.
    """
    tensors = {f.name: v for f in dataclasses.fields(like) if isinstance(v := getattr(like, f.name), Tensor)}
    row: dict[str, Any] = {name: value[:1] for name, value in tensors.items()}
    row |= {name: torch.zeros_like(row[name]) for name in ("response_mask", "advantages")}
    if like.media is not None:
        row["media"] = like.media[:1]
    return dataclasses.replace(like, **row, weight=0.0, host=None)
