"""Tokens of a step: convert positions in a response's text to positions among its tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.thinking import decode_response
from gspo_lightning.core.types import Rollout


def token_steps(
    rollout: Rollout, steps: Sequence[tuple[int, float]], tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[int, float], ...]:
    """Return (end, score) of each step that has tokens, with ends counted in tokens of ``rollout.token_ids``.

    A token belongs to the step that holds its last character, so a token with the end of one step and the beginning of
    the next belongs to the next. The last step takes the rest, end token included. A step without a token of its own
    is scored with the next one: their mean.

    Args:
        rollout: with its tokens.
        steps: (end, score), ends counted in characters of ``rollout.text``.
        tokenizer: of the policy.
    """
    if not steps:
        return ()
    positions = rollout.response_mask.nonzero().flatten().tolist()  # of the policy's tokens among all
    ids: list[int] = rollout.token_ids[rollout.response_mask].tolist()
    lengths = _Lengths(ids, tokenizer)
    with_tokens: list[tuple[int, float]] = []
    scores: list[float] = []  # of steps since the last one that had a token
    previous = 0
    for number, (end, score) in enumerate(steps):
        is_last = number == len(steps) - 1
        count = len(ids) if is_last else lengths.tokens_within(end, previous)
        scores.append(score)
        if count > previous:
            with_tokens.append((positions[count - 1] + 1, sum(scores) / len(scores)))
            previous = count
            scores = []
    if scores and with_tokens:  # the last steps have no token: they are scored with the one before
        end, score = with_tokens[-1]
        with_tokens[-1] = (end, (score + sum(scores)) / (1 + len(scores)))
    return tuple(with_tokens)


class _Lengths:
    """Number of characters in the text of the first n tokens, decoded on demand.

    Decoding begins at a token whose start is known, one token earlier for decoders that drop a leading space.
    """

    def __init__(self, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> None:
        self.ids = ids
        self.tokenizer = tokenizer
        self.anchor = 0
        """Number of tokens whose text is complete, from where decoding begins."""
        self.characters = 0
        """Length of their text."""

    def tokens_within(self, end: int, first: int) -> int:
        """Return the largest number of tokens, at least ``first``, whose text has at most ``end`` characters."""
        # double the stride until the text is too long, then bisect: few and short decodes for a near end
        stride = 64
        high = first
        while high < len(self.ids) and self._length(high) <= end:
            high = min(len(self.ids), high + stride)
            stride *= 2
        beyond = bisect_left(range(first, high + 1), True, key=lambda n: self._length(n) > end)
        count = max(first, first + beyond - 1)
        if not self._text(self.anchor, count).endswith("\N{REPLACEMENT CHARACTER}"):  # else in the middle of one
            self.characters = self._length(count)  # before the anchor moves: the length is counted from it
            self.anchor = count
        return count

    def _length(self, count: int) -> int:
        before = max(0, self.anchor - 1)
        inside = len(self._text(before, count)) - len(self._text(before, self.anchor))
        return self.characters + inside

    def _text(self, start: int, end: int) -> str:
        return decode_response(self.tokenizer, self.ids[start:end])
