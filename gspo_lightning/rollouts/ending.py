"""End conditions of a response: end tokens, stop strings, the token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.thinking import decode_response
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.source import ResponsePrefix

Newest = Callable[[Sequence[int], int | None], list[list[int]]]
"""Called with row numbers and a count: returns the last ``count`` tokens of each row, all if fewer or if None."""

EDGE = 16
"""Characters at the edge of a decoded piece that may differ from the whole text.

Causes: bytes of a character that was cut in two, a space that a tokenizer takes from the first word or puts before the
last one, cleaned-up spaces.
"""

BROKEN = "\N{REPLACEMENT CHARACTER}"
"""Decoding of invalid bytes: some tokenizers (Llama 2's) replace a whole run of bytes if one is missing."""

_SIZES: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, int]] = WeakKeyDictionary()


def texts_ended(
    tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], last: Sequence[int], newest: Newest
) -> list[bool]:
    """Return True for each row whose text contains a stop string; without its newest token it did not.

    A stop string that a row has just completed lies within the characters of the newest token and as many before as
    the longest stop string has. Only that part is decoded, with more tokens if some decode to nothing; a match is
    confirmed in the whole text.

    Args:
        tokenizer: decodes, without special tokens.
        stops: at least one text.
        last: [rows] the newest tokens.
        newest: returns the tokens of rows.
    """
    longest = max(map(len, stops))
    ended = [False] * len(last)
    rows, count = list(range(len(last))), longest + EDGE + 4
    while rows:
        wider: list[int] = []
        pieces = newest(rows, count)
        for row, piece, text in zip(rows, pieces, _decode(tokenizer, pieces), strict=True):
            if any(stop in text for stop in stops):
                ended[row] = True
            elif len(piece) == count and len(text.lstrip(BROKEN)) < longest + EDGE + _size(tokenizer, last[row]):
                wider.append(row)
        rows, count = wider, 4 * count
    found = [row for row, hit in enumerate(ended) if hit]
    for row, text in zip(found, _decode(tokenizer, newest(found, None)) if found else [], strict=True):
        ended[row] = any(stop in text for stop in stops)
    return ended


def _decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]]) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def _size(tokenizer: PreTrainedTokenizerBase, token: int) -> int:
    """Return the number of characters of a token."""
    sizes = _SIZES.setdefault(tokenizer, {})
    if token not in sizes:
        sizes[token] = len(_decode(tokenizer, [[token]])[0])
    return sizes[token]


def has_ended(policy: Policy, last: Tensor, sampling: SamplingParams, newest: Newest, going: Tensor) -> Tensor:
    """[rows] bool: the last token is a stop token, or the text so far contains a stop string.

    Args:
        policy: provides the tokenizer.
        last: [rows] the newest tokens.
        sampling: the stops.
        newest: returns the tokens of some rows; called only if they are needed.
        going: [rows] bool, the rows whose texts are checked; finished rows are skipped.
    """
    ended = torch.zeros_like(last, dtype=torch.bool)
    for stop in sampling.stop_token_ids:
        ended = ended | (last == stop)
    if sampling.stop_strings:
        (rows,) = (going & ~ended).nonzero(as_tuple=True)
        numbers = rows.tolist()
        found = texts_ended(
            policy.tokenizer,
            sampling.stop_strings,
            last[rows].tolist(),
            lambda which, count: newest([numbers[i] for i in which], count),
        )
        ended[rows] = torch.tensor(found, dtype=torch.bool, device=last.device)
    return ended


def finish(
    prompt: Prompt, sample: int, tokens: Tensor, logprobs: Tensor, *, reason: FinishReason, version: int, policy: Policy
) -> Rollout:
    """Build a :class:`Rollout` on the CPU from sampled tokens, all of them the policy's own."""
    ids = tokens.to("cpu", torch.int64).clone()
    return Rollout(
        prompt=prompt,
        sample=sample,
        token_ids=ids,
        logprobs=logprobs.to("cpu", torch.float32).clone(),
        response_mask=torch.ones(ids.shape[0], dtype=torch.bool),
        finish_reason=reason,
        policy_version=version,
        text=decode_response(policy.tokenizer, ids.tolist()),
    )


def cut(row: ResponsePrefix, version: int) -> Rollout:
    """Return an empty piece for a response that never got its turn."""
    none = torch.zeros(0)
    return Rollout(row.prompt, row.sample, none.long(), none, none.bool(), FinishReason.CUT, version)
