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
    own = rollout.response_mask.nonzero().flatten().tolist()
    ids: list[int] = rollout.token_ids[rollout.response_mask].tolist()
    lengths = _Lengths(ids, tokenizer)
    found: list[tuple[int, float]] = []
    waiting: list[float] = []
    before = 0
    for number, (end, score) in enumerate(steps):
        last = number == len(steps) - 1
        count = len(ids) if last else lengths.tokens_within(end, before)
        waiting.append(score)
        if count > before:
            found.append((own[count - 1] + 1, sum(waiting) / len(waiting)))
            before, waiting = count, []
    if waiting and found:  # the last steps have no token: they are scored with the one before
        end, score = found[-1]
        found[-1] = (end, (score + sum(waiting)) / (1 + len(waiting)))
    return tuple(found)


class _Lengths:
    """Number of characters in the text of the first n tokens, decoded on demand.

    Decoding begins at a token whose start is known, one token earlier for decoders that drop a leading space.
    """

    def __init__(self, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> None:
        self.ids, self.tokenizer = ids, tokenizer
        self.anchor, self.characters = 0, 0

    def tokens_within(self, end: int, first: int) -> int:
        """Return the largest number of tokens, at least ``first``, whose text has at most ``end`` characters."""
        step = 64
        high = first
        while high < len(self.ids) and self._length(high) <= end:
            high, step = min(len(self.ids), high + step), 2 * step
        beyond = bisect_left(range(first, high + 1), True, key=lambda n: self._length(n) > end)
        count = max(first, first + beyond - 1)
        if not self._text(self.anchor, count).endswith("\N{REPLACEMENT CHARACTER}"):
            self.anchor, self.characters = count, self._length(count)
        return count

    def _length(self, count: int) -> int:
        before = max(0, self.anchor - 1)
        inside = len(self._text(before, count)) - len(self._text(before, self.anchor))
        return self.characters + inside

    def _text(self, start: int, end: int) -> str:
        return decode_response(self.tokenizer, self.ids[start:end])
