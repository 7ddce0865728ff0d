"""Packed layout of a micro-batch: a common prefix once, each prompt once, responses without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.pictures import blocks_of
from gspo_lightning.core.transfer import to_device
from gspo_lightning.core.types import MicroBatch


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Layout of M packed tokens: every distinct prompt once, then the responses, rows of one prompt side by side.

    If all prompts begin with the same ``prefix`` tokens, these come first, and only once.

    The last token of a response predicts nothing and is left out. ``token_ids``, ``positions`` and ``sources`` (the row
    that a token is read from) are [M]. The other tensors have one element per response token: ``predicts``, the packed
    token that predicts it; ``targets``, its id; ``rows`` and ``steps``, its place in a [N, T] tensor. ``segments`` are
    (start, length) of the prefix, of the rest of each prompt, and of responses, ``crossings`` (start and length of the
    responses to a prompt, start and length of the rest of the prompt), ``pictures`` (start, length) of the pictures in
    prompts, tile by tile.
    """

    token_ids: Tensor
    positions: Tensor
    sources: Tensor
    predicts: Tensor
    targets: Tensor
    rows: Tensor
    steps: Tensor
    segments: list[tuple[int, int]]
    crossings: list[tuple[int, int, int, int]]
    longest: int
    pictures: list[tuple[int, int]]
    prefix: int

    @classmethod
    def of(cls, batch: MicroBatch, prefix: int = 0) -> PackedLayout:
        """Return the layout of a micro-batch, on its device; rows with the same ``prompt_index`` share their prompt.

        Args:
            batch: N rows.
            prefix: first tokens that all prompts share; fewer than the shortest prompt has.
        """
        widths, counts, index = batch.on_host()
        owner = torch.arange(len(widths)) if index is None else index
        order = torch.argsort(owner, stable=True)
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = owner[order][1:] != owner[order][:-1]
        heads = order[first]  # for each prompt, the row it is read from
        prompt_of = first.long().cumsum(0) - 1  # for the rows in order

        # the packed tokens: the prefix, the rest of each prompt, and all of a response but its last token
        prefix = prefix if len(heads) > 1 else 0
        prompt_lengths = widths[heads] - prefix
        prompt_tokens, prompt_steps, prompt_starts = _ragged(prompt_lengths)
        prompt_starts = prompt_starts + prefix
        kept = counts[order] - 1
        inner_tokens, inner_steps, inner_starts = _ragged(kept)
        size = prefix + int(prompt_lengths.sum())
        packed_rows = torch.cat([heads[:1].expand(prefix), heads[prompt_tokens], order[inner_tokens]])
        positions = torch.cat([torch.arange(prefix), prefix + prompt_steps, widths[order][inner_tokens] + inner_steps])

        # the response tokens: the first is predicted by the last token of its prompt, others by the one before
        tokens, steps, _ = _ragged(counts[order])
        previous = size + inner_starts[tokens] + steps - 1
        prompt_end = prompt_starts[prompt_of] + prompt_lengths[prompt_of] - 1
        rows = order[tokens]
        ids = batch.input_ids
        predicts = torch.where(steps == 0, prompt_end[tokens], previous)
        planned = [packed_rows, positions, rows, steps, predicts, widths[rows] + steps]
        sources, places, rows_there, steps_there, predicts, columns = to_device(planned, ids.device)
        return cls(
            token_ids=ids[sources, places],
            positions=places,
            sources=sources,
            predicts=predicts,
            targets=ids[rows_there, columns],
            rows=rows_there,
            steps=steps_there,
            segments=[
                *([(0, prefix)] if prefix else []),
                *zip(prompt_starts.tolist(), prompt_lengths.tolist(), strict=True),
                *((s, n) for s, n in zip((size + inner_starts).tolist(), kept.tolist(), strict=True) if n),
            ],
            crossings=_crossings(prompt_of, kept, size, prompt_starts, prompt_lengths),
            longest=int((widths + counts).max()),
            pictures=blocks_of([batch.media[i] for i in heads.tolist()], prompt_starts.tolist()) if batch.media else [],
            prefix=prefix,
        )


def _ragged(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return list number and place in the list of every element of concatenated lists, and the start of each list."""
    ends = lengths.cumsum(0)
    starts = ends - lengths
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return owner, torch.arange(int(ends[-1])) - starts[owner], starts


def _crossings(
    prompt_of: Tensor, kept: Tensor, size: int, starts: Tensor, widths: Tensor
) -> list[tuple[int, int, int, int]]:
    total = torch.zeros(len(starts), dtype=torch.int64).index_add_(0, prompt_of, kept)
    begins = size + total.cumsum(0) - total
    columns = torch.stack([begins, total, starts, widths], dim=1).tolist()
    return [(begin, length, start, width) for begin, length, start, width in columns if length]
