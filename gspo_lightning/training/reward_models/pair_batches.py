"""Pairs as token ids, and batches of them: padded on the right, never cut."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jinja2 import TemplateError
from numpy.typing import NDArray
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.transfer import to_device
from gspo_lightning.data.prompts.preferences import Pair, Preferences, Side
from gspo_lightning.data.prompts.specials import render

log = logging.getLogger(__name__)

Text = Literal["joined", "chat"]
"""``joined``: prompt and answer as one text. ``chat``: as the tokenizer's chat template writes them."""
_AT_A_TIME = 256
"""Pairs that are tokenized together."""


@dataclass(frozen=True, slots=True)
class Row:
    """A pair as token ids; ``prompt`` is the same number for all pairs of one prompt."""

    chosen: NDArray[np.int32]
    rejected: NDArray[np.int32]
    margin: float
    prompt: int

    @property
    def length(self) -> int:
        """Tokens of the longer answer with its prompt."""
        return max(len(self.chosen), len(self.rejected))


@dataclass(frozen=True, slots=True)
class Dropped:
    """Numbers of dropped pairs: answers that are too long, and answers that are identical."""

    too_long: int = 0
    identical: int = 0


@dataclass(slots=True)
class PairBatch:
    """N pairs that go through the model together.

    ``input_ids`` and ``attention_mask`` are [2 N, S] int64: first the chosen answers, then the rejected ones.
    ``margins`` [N] float32; ``weights`` [N] float32 are 1, or 0 for a filler that only keeps ranks in step; ``numbers``
    [N] int64 are the indices of the pairs in their set. ``total`` pairs share one optimizer step, over all
    micro-batches and ranks.
    """

    input_ids: Tensor
    attention_mask: Tensor
    margins: Tensor
    weights: Tensor
    numbers: Tensor
    total: int

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of the model."""
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}

    def to(self, device: torch.device | str, *_: Any, **__: Any) -> PairBatch:
        """Move the pairs to another device (Lightning calls this)."""
        names = ("input_ids", "attention_mask", "margins", "weights", "numbers")
        moved: dict[str, Any] = dict(zip(names, to_device([getattr(self, n) for n in names], device), strict=True))
        return replace(self, **moved)


def encode_pairs(
    pairs: Preferences, tokenizer: PreTrainedTokenizerBase, text: Text, max_tokens: int, field: str
) -> tuple[list[Row], Dropped]:
    """Return every pair whose answers fit, in order, and the numbers of dropped pairs.

    Args:
        pairs: to encode.
        tokenizer: of the model.
        text: text format that the model reads.
        max_tokens: of an answer with its prompt; a pair with a longer one is dropped.
        field: the setting that messages name.

    Raises:
        UserError: an answer without tokens, messages that the chat template refuses, or no pair is left.
    """
    prompt_numbers: dict[str, int] = {}
    rows: list[Row] = []
    too_long = 0
    identical = 0
    numbered = enumerate(pairs)
    while batch := list(itertools.islice(numbered, _AT_A_TIME)):
        texts = []
        for i, pair in batch:
            texts += [_written(side, pair, tokenizer, text, field, pairs.where(i)) for side in _sides(pair)]
        encoded = tokenizer(texts, add_special_tokens=text == "joined")["input_ids"]
        for (i, pair), chosen, rejected in zip(batch, encoded[::2], encoded[1::2], strict=True):
            if not (chosen and rejected):
                raise UserError(field, f"{pairs.where(i)}: an answer has no tokens", fix="leave the record out")
            if chosen == rejected:
                identical += 1
            elif max(len(chosen), len(rejected)) > max_tokens:
                too_long += 1
            else:
                prompt = prompt_numbers.setdefault(pair.key, len(prompt_numbers))
                rows.append(Row(np.array(chosen, np.int32), np.array(rejected, np.int32), pair.margin, prompt))
    for count, why in (
        (too_long, f"an answer with its prompt has more than data.max_tokens = {max_tokens} (nothing is ever cut)"),
        (identical, "both answers are the same"),
    ):
        if count:
            log.warning("%s: dropped %d of %d pairs: %s", field, count, len(pairs), why)
    if not rows:
        problem = f"no pair is left: {too_long} of {len(pairs)} are longer than data.max_tokens = {max_tokens}"
        raise UserError(field, problem, fix="raise data.max_tokens, or give other pairs")
    return rows, Dropped(too_long, identical)


def _sides(pair: Pair) -> tuple[Side, Side]:
    return pair.chosen, pair.rejected


def _written(side: Side, pair: Pair, tokenizer: PreTrainedTokenizerBase, text: Text, field: str, where: str) -> str:
    """Return prompt and answer as the text that the tokenizer reads."""
    if text == "joined":
        assert isinstance(side, str)
        return (pair.prompt if isinstance(pair.prompt, str) else "") + side
    if pair.prompt is None:
        problem = f"{where}: data.text is chat, but the prompt of a text is not told from its answers"
        raise UserError(field, problem, fix="add a column 'prompt', or set data.text: joined")
    prompt = [{"role": "user", "content": pair.prompt}] if isinstance(pair.prompt, str) else list(pair.prompt)
    answer = [{"role": "assistant", "content": side}] if isinstance(side, str) else list(side)
    try:
        return render(tokenizer, [*prompt, *answer], **pair.tools)
    except TemplateError as error:
        problem = f"{where}: the chat template refuses the messages: {first_line(error)[:200]}"
        raise UserError(field, problem, fix="write messages as the model's template wants them") from error


def collate(
    rows: Sequence[Row], numbers: Sequence[int], tokenizer: PreTrainedTokenizerBase, total: int, fill: int = 0
) -> PairBatch:
    """Collate pairs by their numbers, padded on the right to the longest; fillers repeat the first pair of ``rows``.

    Args:
        rows: of the set.
        numbers: indices of this batch's pairs.
        tokenizer: pads.
        total: pairs of the optimizer step.
        fill: pairs of weight 0 to add.
    """
    batch = [rows[i] for i in numbers] + [rows[0]] * fill
    ids = [row.chosen.tolist() for row in batch] + [row.rejected.tolist() for row in batch]
    padded = tokenizer.pad(BatchEncoding({"input_ids": ids}), padding_side="right", return_tensors="pt")
    return PairBatch(
        input_ids=padded["input_ids"],
        attention_mask=padded["attention_mask"],
        margins=torch.tensor([row.margin for row in batch], dtype=torch.float32),
        weights=torch.tensor([1.0] * len(numbers) + [0.0] * fill),
        numbers=torch.tensor([*numbers, *[0] * fill]),
        total=total,
    )


def alone_and_padded(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> tuple[PairBatch, PairBatch] | None:
    """Return the shortest answer without padding, and padded next to the longest one; None if all have one length."""
    sides = [side for row in rows for side in (row.chosen, row.rejected)]
    shortest = min(sides, key=len)
    longest = max(sides, key=len)
    if len(shortest) == len(longest):
        return None
    alone = collate([Row(shortest, shortest, 0.0, 0)], [0], tokenizer, 1)
    padded = collate([Row(shortest, longest, 0.0, 0)], [0], tokenizer, 1)
    return alone, padded


class PairLoader:
    """Micro-batches of this rank's pairs: sized, without a state of its own.

    Every optimizer step takes ``batch_size`` pairs of the order (the last step of an epoch takes the rest) and deals
    them to the ranks. Each rank splits its share into the same number of micro-batches, the longest pairs together.

    Args:
        rows: of the set.
        order: epoch -> numbers of the rows in their order.
        batch_size: pairs of an optimizer step, over all ranks.
        micro_batch_size: pairs of a forward pass.
        rank: of this process.
        world: number of processes.
        tokenizer: pads.
        begun: returns the optimizer steps made so far when an iteration starts; it continues from there.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        order: Callable[[int], Sequence[int]],
        batch_size: int,
        micro_batch_size: int,
        rank: int,
        world: int,
        tokenizer: PreTrainedTokenizerBase,
        begun: Callable[[], int] = lambda: 0,
    ) -> None:
        self.rows = rows
        self.order = order
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.world = world
        self.tokenizer = tokenizer
        self.begun = begun

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-len(self.rows) // self.batch_size)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of an optimizer step, on every rank."""
        share = -(-min(self.batch_size, len(self.rows)) // self.world)
        return -(-share // self.micro_batch_size)

    def __len__(self) -> int:
        return self.steps * self.micro_batches

    def __iter__(self) -> Iterator[PairBatch]:
        epoch, first = divmod(self.begun(), self.steps)
        order = self.order(epoch)
        for step in range(first, self.steps):
            pairs = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield from self._cut(pairs)

    def _cut(self, pairs: Sequence[int]) -> Iterator[PairBatch]:
        """Yield this rank's micro-batches of an optimizer step; one without a pair has a filler."""
        of_rank = sorted(pairs[self.rank :: self.world], key=lambda i: -self.rows[i].length)
        size = -(-len(of_rank) // self.micro_batches)
        for start in range(self.micro_batches):
            numbers = of_rank[start * size : (start + 1) * size]
            yield collate(self.rows, numbers, self.tokenizer, len(pairs), fill=0 if numbers else 1)
