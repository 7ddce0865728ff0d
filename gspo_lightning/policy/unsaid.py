"""Tokens that a policy never says: their logits are suppressed in the head, behind every log-probability.

The sampler, the old policy, the reference and training share the head, and servers get the same rule as a logit bias.
So ratios stay exact, and no token is sampled that training would refuse. Two kinds of tokens are never said:
placeholders of pictures and videos, and padding of the vocabulary. Published models round their vocabularies up
(Qwen3: 151,936 rows for 151,669 tokens), and the added rows have no text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from gspo_lightning.policy.vision.image_processor import ImageProcessorAdapter

UNSAID = -1e4
"""Logit of a token that is never sampled: finite, so that 0 x log 0 is 0; its probability is 0 at any temperature."""


def padding_of(tokenizer: PreTrainedTokenizerBase, vocabulary: int, ends: Collection[int] = ()) -> tuple[int, ...]:
    """Return the rows of a model's head that no token of its tokenizer has, ascending.

    A row is asked for by its number, too: two tokens that are parts of one character may share a name in a vocabulary
    (in transformers' ``MistralCommonBackend`` most bytes are named U+FFFD), which then lists one of them.

    Args:
        tokenizer: the model's.
        vocabulary: rows of the head.
        ends: tokens that end a response, which are said even if the tokenizer does not know them.
    """
    unlisted = sorted(set(range(vocabulary)).difference(tokenizer.get_vocab().values(), ends))
    size = len(tokenizer)
    return tuple(row for row in unlisted if row >= size or not _has_token(tokenizer, row))


def _has_token(tokenizer: PreTrainedTokenizerBase, row: int) -> bool:
    try:
        name = tokenizer.convert_ids_to_tokens(row)
    except IndexError:  # SentencePiece's answer to a row that it does not have
        return False
    return bool(name) and name != tokenizer.unk_token  # some classes call a row without a token unknown


def placeholders_of(image_processor: ImageProcessorAdapter | None) -> tuple[int, ...]:
    """Return the tokens that stand for pictures and videos in a prompt; none for a model that reads text only."""
    return () if image_processor is None else image_processor.unsaid


def sayable_tokens(numbers: Tensor, vocabulary: int, unsaid: Collection[int] = ()) -> Tensor:
    """Return tokens for numbers >= 0 of any size, counting round the vocabulary without the tokens never said.

    >>> sayable_tokens(torch.tensor([0, 1, 2, 3]), 4, unsaid=(1,)).tolist()
    [0, 2, 3, 0]
    """
    if not unsaid:
        return numbers % vocabulary
    left = torch.tensor(sorted(set(range(vocabulary)).difference(unsaid)), device=numbers.device)
    return left[numbers % len(left)]


def suppressed(logits: Tensor, index: Tensor) -> Tensor:
    """Return logits [..., V] with those of the tokens in ``index`` at :data:`UNSAID`; in place without gradients."""
    if logits.requires_grad:
        return logits.index_fill(-1, index, UNSAID)
    return logits.index_fill_(-1, index, UNSAID)


@dataclass(frozen=True, slots=True)
class SuppressingHead:
    """Output embedding whose logits of some tokens are suppressed."""

    linear: nn.Module
    index: Tensor

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., D]."""
        return suppressed(self.linear(hidden), self.index)
