"""Cut the rows of a mini-batch (one optimizer step) into micro-batches (one forward pass each), and build those.

Micro-batches keep rows of one context together under a token budget or, for a model that needs padding, hold rows of
similar length. How a mini-batch is cut never changes a loss or gradient, because denominators belong to the mini-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch, Rollout
from gspo_lightning.policy.packing.rows import Row, rows_of, shares

RowWeights = Literal["rollout", "row"]
"""``rollout``: the rows of a rollout share the weight 1 by their trained tokens; ``row``: each has the weight 1."""


def cut_micro_batches(
    rollouts: Sequence[Rollout], max_tokens: int, packed: bool = False, version: int | None = None
) -> list[MicroBatch]:
    """Cut the rows of rollouts as :func:`cut` does, and build the micro-batches."""
    return [make_micro_batch(rows, version) for rows in cut(rows_of(rollouts), max_tokens, packed)]


def cut(rows: Sequence[Row], max_tokens: int, packed: bool = False, prefix: int = 0) -> list[list[Row]]:
    """Cut rows into micro-batches of at most ``max_tokens``.

    Args:
        rows: those of a mini-batch, one or more.
        max_tokens: budget. Padded: rows x the longest row. Packed: tokens of distinct contexts and of all responses.
        packed: keep rows of a context together, so that they pay for it once; only a group larger than the budget is
            split. Loads are balanced. Otherwise rows of similar length stand together.
        prefix: first tokens of all contexts, which a packed micro-batch pays for once; see
            :func:`gspo_lightning.policy.packing.rows.common_prefix`.

    Raises:
        UserError: a single row is longer than the budget: it could never be trained on.
    """
    longest = max(row.length for row in rows)
    if longest > max_tokens:
        raise UserError(
            "data.max_tokens_per_micro_batch",
            f"is {max_tokens}, but one sequence has {longest} tokens",
            fix=f"use at least max_prompt_tokens + max_response_tokens (here {longest} or more)",
        )
    return _cut_contexts(rows, max_tokens - prefix, prefix) if packed else _cut_lengths(rows, max_tokens)


def _cut_lengths(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Sort rows by length and cut them so that rows x longest row stays within the budget."""
    rows = sorted(rows, key=lambda row: row.length, reverse=True)  # a stable sort: equal lengths keep their order
    cuts: list[list[Row]] = [[]]
    width = rows[0].length
    for row in rows:
        if (len(cuts[-1]) + 1) * width > max_tokens:
            cuts.append([])
            width = row.length
        cuts[-1].append(row)
    return cuts


def _cut_contexts(rows: Sequence[Row], max_tokens: int, prefix: int) -> list[list[Row]]:
    """Deal the rows of each context to as few micro-batches as possible, the longest first to the emptiest.

    Neither the budget nor the sizes of rows count the common prefix.
    """
    sharing: dict[object, list[Row]] = {}
    for row in rows:
        sharing.setdefault(_shared(row), []).append(row)
    parts = [part for own in sharing.values() for part in _split(own, max_tokens, prefix)]
    sizes = [_packed_size(part, prefix) for part in parts]
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


def _shared(row: Row) -> tuple[int, tuple[int, ...]]:
    """Return what rows must have in common to be computed with one context: its tokens, and the prompt's pictures."""
    return row.rollout.prompt.id, row.context


def _split(sharing: list[Row], max_tokens: int, prefix: int) -> list[list[Row]]:
    """Return rows of a context whole, or in parts if larger than the budget; each part repeats the context."""
    if _packed_size(sharing, prefix) <= max_tokens:
        return [sharing]
    context = len(sharing[0].context) - prefix
    parts: list[list[Row]] = [[]]
    size = context
    for row in sorted(sharing, key=lambda row: row.length, reverse=True):
        if size + row.size > max_tokens:
            parts.append([])
            size = context
        parts[-1].append(row)
        size += row.size
    return parts


def _packed_size(sharing: Sequence[Row], prefix: int) -> int:
    return len(sharing[0].context) - prefix + sum(row.size for row in sharing)


def make_micro_batch(
    rollouts: Sequence[Rollout | Row],
    version: int | None = None,
    sources: Sequence[str] = (),
    accuracy_reward: str = "",
    group_index: tuple[int, ...] | None = None,
    weigh: RowWeights = "rollout",
    prefix: int = 0,
) -> MicroBatch:
    """Build left-aligned rows: context, response, padding (id 0, masked by length, so its value is never read).

    Args:
        rollouts: rows, or rollouts, which stand for their rows.
        version: the policy's present version: response tokens that an earlier version sampled are marked stale.
        sources: names of a mixture's sources.
        accuracy_reward: name of the reward that decides which responses are correct.
        group_index: number of each row's group in the mini-batch (:func:`group_numbers`).
        weigh: see :data:`RowWeights`.
        prefix: see :func:`gspo_lightning.policy.packing.rows.common_prefix`.
    """
    rows = rows_of(rollouts)
    of = [row.rollout for row in rows]
    contexts = torch.tensor([len(row.context) for row in rows])
    responses = torch.tensor([row.size for row in rows])
    width = int((contexts + responses).max())
    steps = int(responses.max())
    input_ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), steps, dtype=torch.bool)
    has_logprobs = all(r.logprobs is not None for r in of)
    behaviour = torch.zeros(len(rows), steps, dtype=torch.float32) if has_logprobs else None
    pieces = any(r.versions is not None for r in of)
    stale = torch.zeros(len(rows), steps, dtype=torch.bool) if pieces else None
    for i, (row, rollout) in enumerate(zip(rows, of, strict=True)):
        start, count = len(row.context), row.size
        input_ids[i, :start] = torch.tensor(row.context)
        input_ids[i, start : start + count] = row.token_ids
        mask[i, :count] = row.trained
        if behaviour is not None and rollout.logprobs is not None:
            behaviour[i, :count] = row.slice(rollout.logprobs)
        if stale is not None and version is not None and rollout.versions is not None:
            stale[i, :count] = row.slice(rollout.versions) < version
    return MicroBatch(
        input_ids, contexts, responses, mask, advantages_of(rows, steps),
        behaviour_logprobs=behaviour, prompt_index=torch.tensor(_numbered(_shared(row) for row in rows)), stale=stale,
        routes=_routes(rows, width - 1), sources=_sources(of, sources), segments=_segments(rows, steps),
        positive=torch.tensor([r.correct(accuracy_reward) for r in of]),
        media=tuple(r.prompt.media for r in of) if any(r.prompt.media for r in of) else None,
        group_index=group_index, row_weights=shares(rows) if weigh == "rollout" else None,
        common_prefix=prefix,
    )  # fmt: skip


def group_numbers(parts: Sequence[Sequence[Row]]) -> list[tuple[int, ...]]:
    """Return the number of each row's group among those of a mini-batch, by micro-batch."""
    found = iter(_numbered(row.rollout.prompt.id for rows in parts for row in rows))
    return [tuple(next(found) for _ in rows) for rows in parts]


def _numbered(keys: Iterable[object]) -> list[int]:
    """Number things from 0 in the order in which they first appear; equal ones have the same number."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _routes(rows: Sequence[Row], width: int) -> Tensor | None:
    """Return routes [N, width, L, k] if all rollouts have them, else None; padding has the first k experts."""
    known = [routes for row in rows if (routes := row.routes) is not None]
    if len(known) < len(rows):
        return None
    layers, k = known[0].shape[1:]
    routes = torch.arange(k).to(known[0].dtype).expand(len(known), width, layers, k).clone()
    for row, own in zip(routes, known, strict=True):
        row[: own.shape[0]] = own
    return routes


def _sources(of: Sequence[Rollout], names: Sequence[str]) -> Tensor | None:
    """Return the source of each row's rollout, [N, S] bool; None without sources."""
    if not names:
        return None
    numbers = torch.tensor([names.index(rollout.prompt.columns["source"]) for rollout in of])
    return numbers[:, None] == torch.arange(len(names))


def _segments(rows: Sequence[Row], width: int) -> Tensor | None:
    """Return each token's step [N, width]; a step ends wherever any reward ends one. None if no steps were scored."""
    if not any(row.rollout.steps for row in rows):
        return None
    segments = torch.zeros(len(rows), width, dtype=torch.int64)
    for segment, row in zip(segments, rows, strict=True):
        for end in {end - row.span.start for steps in row.rollout.steps.values() for end, _ in steps}:
            if 0 < end <= row.size:
                segment[end : row.size] += 1
    return segments.clamp(max=max(width - 1, 0))


def advantages_of(rows: Sequence[Row], steps: int) -> Tensor:
    """Return the present advantages of rows: [N] float32, or [N, T = ``steps``] if any row has one for each token."""
    if all(row.rollout.token_advantages is None for row in rows):
        return torch.tensor([row.rollout.advantage for row in rows], dtype=torch.float32)
    values = torch.zeros(len(rows), steps, dtype=torch.float32)
    for i, row in enumerate(rows):
        own = row.rollout.token_advantages
        values[i, : row.size] = row.rollout.advantage if own is None else row.slice(own)
    return values


def filler(like: MicroBatch) -> MicroBatch:
    """Return a one-row micro-batch of weight 0, which keeps a rank with fewer micro-batches in step with the others.

    Every tensor is the first row of ``like``, but mask and advantages are zeros.
    """
    tensors = {f.name: v for f in dataclasses.fields(like) if isinstance(v := getattr(like, f.name), Tensor)}
    row: dict[str, Any] = {name: value[:1] for name, value in tensors.items()}
    row |= {name: torch.zeros_like(row[name]) for name in ("response_mask", "advantages")}
    row |= {name: value[:1] for name in ("media", "group_index") if (value := getattr(like, name)) is not None}
    return dataclasses.replace(like, **row, no_gradient=None, weight=0.0, host=None)


def select_rows(part: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Return some rows of a micro-batch, without the columns that none of them fills.

    Args:
        part: N rows, on any device, for which the host does not wait.
        rows: which of them, one or more, rising.
    """
    places = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else torch.tensor(rows)
    prompts, responses, index = part.on_host()
    host = (prompts[places], responses[places], None if index is None else index[places])
    width = int((host[0] + host[1]).max())
    steps = int(host[1].max())
    on_device = places if isinstance(places, slice) else places.to(part.input_ids.device, non_blocking=True)
    selected: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            columns = width if field.name == "input_ids" else steps
            of_tokens = value.dim() == 2 and field.name != "sources"
            selected[field.name] = value[on_device, :columns] if of_tokens else value[on_device]
        elif field.name in ("media", "group_index", "no_gradient") and value is not None:
            selected[field.name] = tuple(value[row] for row in rows)
    return dataclasses.replace(part, **selected, host=host)


def with_no_gradient(part: MicroBatch) -> MicroBatch:
    """Return a micro-batch whose rows without an advantage, or without a trained token, are marked as such.

    None is marked if the second forward pass would cost more than is saved: what both kinds of rows read (common
    prefix, prompt) is then computed twice, and a backward pass costs two forward passes.

    Args:
        part: on the CPU, with its advantages.
    """
    per_token = part.advantages.reshape(len(part.advantages), -1)
    flags = ~((per_token != 0) & part.response_mask).any(-1)
    if not bool(flags.any()):
        return part
    prompt = torch.arange(len(flags)) if part.prompt_index is None else part.prompt_index
    own_tokens = dict(zip(prompt.tolist(), (part.prompt_lengths - part.common_prefix).tolist(), strict=True))
    without = {*prompt[flags].tolist()}
    both = without & {*prompt[~flags].tolist()}
    twice = part.common_prefix + sum(own_tokens[i] for i in both)
    once = int(part.response_lengths[flags].sum()) + sum(own_tokens[i] for i in without - both)
    pays = bool(flags.all()) or 2 * once > twice
    return dataclasses.replace(part, no_gradient=tuple(flags.tolist())) if pays else part
