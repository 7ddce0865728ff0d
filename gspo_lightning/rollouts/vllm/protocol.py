"""What is asked of a completions endpoint, and what counts as an answer: token ids and log-probabilities, checked.

Everything a server sends is checked against what was asked for, because a short group, a foreign vocabulary or a
response that was cut too early would otherwise train silently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.base import Beginning, Draws, finish
from gspo_lightning.types import FinishReason, Rollout, SamplingParams

__all__ = ["Answer", "BadReplyError", "checked", "parse", "request", "seed_of", "to_rollouts"]

LARGEST_LOGPROB = 1e-3
"""Nats: what rounding may put a log-probability above 0."""


class BadReplyError(Exception):
    """A server answered, but not what was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response as it came: token ids and the log-probability of each (nats)."""

    token_ids: list[int]
    logprobs: list[float]


def seed_of(draws: Draws, row: Beginning) -> int:
    """A seed for what is drawn next: the same again in a repeated call, whatever the server."""
    uniform = draws.uniform(torch.tensor([row.prompt.id]), torch.tensor([row.sample]), row.drawn)
    return int(float(uniform[0]) * 2**53)


def request(model: str, row: Beginning, count: int, sampling: SamplingParams, seed: int) -> dict[str, Any]:
    """The body of ``POST /v1/completions`` for ``count`` responses that begin alike.

    Every default that a server could take from the model's own generation config is said explicitly. Greedy responses
    are all the same, so one is asked for.
    """
    return {
        "model": model,
        "prompt": list(row.context),
        "n": count if sampling.temperature > 0 else 1,
        "seed": seed,
        "max_tokens": row.room,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "ignore_eos": True,  # the end tokens are among the stop tokens
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": list(sampling.stop_strings),
        "include_stop_str_in_output": True,
        "skip_special_tokens": True,
        "logprobs": 0,
        "return_token_ids": True,
    }


def parse(reply: Any, asked: Mapping[str, Any], vocabulary: int) -> list[Answer]:
    """The answers of a reply, in order.

    Raises:
        BadReplyError: what is there is not what was asked for.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
        raise BadReplyError(f"it sent no choices: {_shown(reply)}")
    if len(choices) != asked["n"]:
        raise BadReplyError(f"it sent {len(choices)} responses where {asked['n']} were asked for")
    return [_answer(choice, asked, vocabulary) for choice in choices]


def _answer(choice: dict[str, Any], asked: Mapping[str, Any], vocabulary: int) -> Answer:
    ids, echoed = choice.get("token_ids"), choice.get("prompt_token_ids")
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise BadReplyError(f"it does not return token ids (token_ids: {_shown(ids)})")
    if echoed is not None and echoed != asked["prompt"]:
        raise BadReplyError("it read another prompt than it was sent")
    found = choice.get("logprobs")
    logprobs = found.get("token_logprobs") if isinstance(found, dict) else None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        raise BadReplyError(f"it does not return a log-probability for each token (logprobs: {_shown(found)})")
    return checked(Answer(ids, logprobs), str(choice.get("finish_reason")), asked, vocabulary)


def checked(answer: Answer, reason: str, asked: Mapping[str, Any], vocabulary: int) -> Answer:
    """The answer, if its tokens are the policy's, its log-probabilities are some, and it ends where it should.

    Raises:
        BadReplyError: it is not what was asked for.
    """
    ids, logprobs = answer.token_ids, answer.logprobs
    if not all(0 <= i < vocabulary for i in ids):
        raise BadReplyError(f"it sent the token id {max(ids, key=abs)}, but the policy's vocabulary has {vocabulary}")
    if not all(isinstance(x, int | float) and math.isfinite(x) and x <= LARGEST_LOGPROB for x in logprobs):
        raise BadReplyError(f"its log-probabilities are none: {_shown(logprobs)}")
    _check_end(ids, reason, asked)
    return answer


def _check_end(ids: Sequence[int], reason: str, asked: Mapping[str, Any]) -> None:
    limit, stops = asked["max_tokens"], set(asked["stop_token_ids"])
    if len(ids) > limit:
        raise BadReplyError(f"it sent {len(ids)} tokens where at most {limit} were asked for")
    if stops.intersection(ids[:-1]):
        raise BadReplyError("it went on after an end token")
    ended = ids[-1] in stops or (asked["stop"] and reason == "stop")
    if not ended and len(ids) < limit:
        raise BadReplyError(f"it stopped after {len(ids)} of {limit} tokens without an end (finish_reason: {reason})")


def to_rollouts(
    answers: Sequence[Answer],
    row: Beginning,
    samples: Sequence[int],
    sampling: SamplingParams,
    version: int,
    policy: Policy,
) -> list[Rollout]:
    """Rollouts with these sample numbers from the answers to one request.

    Log-probabilities of top-p and top-k are those of the truncated distribution, so they are left out.

    Raises:
        BadReplyError: the server saw a stop string where there is none.
    """
    same = answers if len(answers) == len(samples) else list(answers) * len(samples)
    return [_rollout(answer, row, k, sampling, version, policy) for k, answer in zip(samples, same, strict=True)]


def _rollout(
    answer: Answer, row: Beginning, sample: int, sampling: SamplingParams, version: int, policy: Policy
) -> Rollout:
    count = _complete(answer.token_ids, row.written, sampling, policy)
    if count is None and len(answer.token_ids) < row.room:
        raise BadReplyError("it stopped at a stop string that is not in the response")
    rollout = finish(
        row.prompt,
        sample,
        torch.tensor(answer.token_ids[:count]),
        torch.tensor(answer.logprobs[:count], dtype=torch.float32),
        reason=FinishReason.LENGTH if count is None else FinishReason.STOP,
        version=version,
        policy=policy,
    )
    if sampling.top_p != 1.0 or sampling.top_k != 0:
        rollout.logprobs = None
    return rollout


def _complete(ids: Sequence[int], before: Sequence[int], sampling: SamplingParams, policy: Policy) -> int | None:
    """After how many tokens a response has ended, by the rule that all sources share; None: it has not."""

    def has_stop(count: int) -> bool:
        text = policy.tokenizer.decode([*before, *ids[:count]], skip_special_tokens=True)
        return any(stop in text for stop in sampling.stop_strings)

    if not sampling.stop_strings or not has_stop(len(ids)):
        return len(ids) if ids[-1] in sampling.stop_token_ids else None
    low, high = 1, len(ids)  # once a text contains a stop string, it always does
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_stop(middle) else (middle + 1, high)
    return low


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:97]}..." if len(text) > 100 else text
