"""Checks of server answers before training on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gspo_lightning.core.errors import is_finite
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.source import LARGEST_LOGPROB


class BadReplyError(Exception):
    """Answer of a server that does not match the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response as received: token ids and the log-probability of each (nats)."""

    token_ids: list[int]
    logprobs: list[float]
    routes: Tensor | None = None
    """Experts it was sampled with, [prompt + response - 1, L, k], if the server reports them."""
    cut: bool = False
    """True if the response was ended before it was complete."""
    versions: list[int] | None = None
    """Weights that sampled each token, in optimizer steps, if they may have changed in between."""


def checked(answer: Answer, reason: str, request: Mapping[str, Any], vocabulary: int) -> Answer:
    """Return the answer after checking its token ids, its log-probabilities and its end.

    Raises:
        BadReplyError: the answer does not match the request.
    """
    ids = answer.token_ids
    if not all(0 <= i < vocabulary for i in ids):
        raise BadReplyError(f"it sent the token id {max(ids, key=abs)}, but the policy's vocabulary has {vocabulary}")
    masked = set(request.get("logit_bias") or ()).intersection(ids)
    if masked:
        rule = "which has no text or stands for a picture: no response may hold it"
        raise BadReplyError(f"it sent the token id {min(masked)}, {rule}")
    if not all(is_finite(logprob) and logprob <= LARGEST_LOGPROB for logprob in answer.logprobs):
        raise BadReplyError(f"its log-probabilities are none: {shown(answer.logprobs)}")
    if not answer.cut:
        _check_end(ids, reason, request)
    return answer


def _check_end(ids: Sequence[int], reason: str, request: Mapping[str, Any]) -> None:
    limit = request["max_tokens"]
    stops = set(request["stop_token_ids"])
    if len(ids) > limit:
        raise BadReplyError(f"it sent {len(ids)} tokens instead of at most {limit}")
    if stops.intersection(ids[:-1]):
        raise BadReplyError("it went on after an end token")
    ended = ids[-1] in stops or (request["stop"] and reason == "stop")
    if not ended and len(ids) < limit:
        raise BadReplyError(f"it stopped after {len(ids)} of {limit} tokens without an end (finish_reason: {reason})")


def complete(ids: Sequence[int], before: Sequence[int], sampling: SamplingParams, policy: Policy) -> int | None:
    """Return the length at which a response ended, by the rule that all sources share; None if it has not ended."""

    def has_stop(count: int) -> bool:
        text = policy.tokenizer.decode([*before, *ids[:count]], skip_special_tokens=True)
        return any(stop in text for stop in sampling.stop_strings)

    if not sampling.stop_strings or not has_stop(len(ids)):
        return len(ids) if ids[-1] in sampling.stop_token_ids else None
    low = 1
    high = len(ids)
    while low < high:  # a binary search: once a text contains a stop string, it always does
        middle = (low + high) // 2
        if has_stop(middle):
            high = middle
        else:
            low = middle + 1
    return low


def shown(value: Any) -> str:
    """Return the value's repr, cut to 100 characters."""
    text = repr(value)
    return f"{text[:97]}..." if len(text) > 100 else text
