"""Requests to a completions endpoint and their checked answers: token ids and log-probabilities.

Every reply is checked against its request: a short group, a foreign vocabulary or a
response that was cut too early would otherwise enter training unnoticed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo_lightning.core.types import FinishReason, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Routing, index_dtype
from gspo_lightning.policy.unsaid import UNSAID
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.ending import finish
from gspo_lightning.rollouts.serving.answers import Answer, BadReplyError, checked, complete, shown
from gspo_lightning.rollouts.serving.weight_version import version_in
from gspo_lightning.rollouts.source import ResponsePrefix

ABORTED = "abort"
"""Finish reason of an aborted response (``POST /abort_requests``)."""


def seed_of(draws: Draws, row: ResponsePrefix) -> int:
    """Return a seed for the next draws: the same in a repeated call, whatever the server."""
    uniform = draws.uniform(torch.tensor([row.prompt.id]), torch.tensor([row.sample]), row.drawn)
    return int(float(uniform[0]) * 2**53)


def request_body(
    model: str, row: ResponsePrefix, count: int, sampling: SamplingParams, seed: int | None, unsaid: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the body of ``POST /v1/completions`` for ``count`` responses to one context.

    Every default that a server could take from the model's own generation config is set explicitly. Greedy responses
    are all the same, so one is requested.

    Args:
        model: name under which the model is served.
        row: beginning that the responses continue.
        count: number of responses.
        sampling: temperature, limits and stops.
        seed: seed of these responses; None leaves the draws to the random numbers of the engine, which then samples all
            its requests in one call instead of one by one.
        unsaid: tokens that no response may hold; their logits become what they are in training.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(row.context),
        "n": count if sampling.temperature > 0 else 1,
        "max_tokens": row.token_budget,
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
    if unsaid:
        body["logit_bias"] = dict.fromkeys(unsaid, UNSAID)
    return body if seed is None else body | {"seed": seed}


def parse(
    reply: Any, asked: Mapping[str, Any], vocabulary: int, routing: Routing | None = None, run: str | None = None
) -> list[Answer]:
    """Return the answers of a reply, in order.

    Args:
        reply: the reply as received.
        asked: the body of the request.
        vocabulary: size of the policy's vocabulary.
        routing: the policy's routing, if the answers must report the experts they were sampled with.
        run: prefix of the run's weight tags, if the answers must report which weights sampled each token.

    Raises:
        BadReplyError: the reply does not match the request.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
        raise BadReplyError(f"it sent no choices: {shown(reply)}")
    if len(choices) != asked["n"]:
        raise BadReplyError(f"it sent {len(choices)} responses instead of {asked['n']}")
    return [_answer(choice, asked, vocabulary, routing, run) for choice in choices]


def _answer(
    choice: dict[str, Any], asked: Mapping[str, Any], vocabulary: int, routing: Routing | None, run: str | None
) -> Answer:
    ids, echoed = choice.get("token_ids"), choice.get("prompt_token_ids")
    cut = choice.get("finish_reason") == ABORTED and bool(asked.get("n") == 1)
    if cut and not ids:
        return Answer([], [], cut=True)
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise BadReplyError(f"it does not return token ids (token_ids: {shown(ids)})")
    if echoed is not None and echoed != asked["prompt"]:
        raise BadReplyError("it read another prompt than it was sent")
    found = choice.get("logprobs")
    logprobs = found.get("token_logprobs") if isinstance(found, dict) else None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        raise BadReplyError(f"it does not return a log-probability for each token (logprobs: {shown(found)})")
    routes = None if routing is None or cut else routes_of(choice, len(asked["prompt"]) + len(ids), routing)
    versions = None if run is None else _versions(choice.get("weight_versions"), len(ids), run)
    return checked(Answer(ids, logprobs, routes, cut, versions), str(choice.get("finish_reason")), asked, vocabulary)


def _versions(spans: Any, count: int, run: str) -> list[int]:
    """Return the version, in optimizer steps, of the weights that sampled each of ``count`` tokens.

    Raises:
        BadReplyError: the spans do not cover all tokens, or name weights that this run did not send.
    """
    found: list[int] = []
    for span in spans if isinstance(spans, list) else []:
        tag, start, end = map(span.get, ("version", "start", "end")) if isinstance(span, dict) else (None, None, None)
        if start != len(found) or type(end) is not int or end > count:
            break
        version = version_in(str(tag), run)
        if version is None:
            raise BadReplyError(f"it sampled from weights that this run has not given it ({shown(tag)})")
        found += [version] * (end - start)
    if len(found) != count:
        raise BadReplyError(f"it does not say which weights sampled each token (weight_versions: {shown(spans)})")
    return found


def to_rollouts(
    answers: Sequence[Answer],
    row: ResponsePrefix,
    samples: Sequence[int],
    sampling: SamplingParams,
    version: int,
    policy: Policy,
) -> list[Rollout]:
    """Return rollouts with these sample numbers from the answers to one request.

    With top-p or top-k, log-probabilities are those of the truncated distribution and are left out. ``version``
    applies to all tokens if an answer does not report its own.

    Raises:
        BadReplyError: the server stopped at a stop string that is not in the response.
    """
    same = answers if len(answers) == len(samples) else list(answers) * len(samples)
    return [_rollout(answer, row, k, sampling, version, policy) for k, answer in zip(samples, same, strict=True)]


def _rollout(
    answer: Answer, row: ResponsePrefix, sample: int, sampling: SamplingParams, version: int, policy: Policy
) -> Rollout:
    version = answer.versions[-1] if answer.versions else version
    if answer.cut:
        tokens, logprobs = torch.tensor(answer.token_ids, dtype=torch.int64), torch.tensor(answer.logprobs)
        return finish(row.prompt, sample, tokens, logprobs, reason=FinishReason.CUT, version=version, policy=policy)
    count = complete(answer.token_ids, row.written, sampling, policy)
    if count is None and len(answer.token_ids) < row.token_budget:
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
    if answer.versions is not None and answer.versions[0] != version:
        rollout.versions = torch.tensor(answer.versions[:count])
        rollout.policy_version = int(rollout.versions[-1])
    if answer.routes is not None and len(row.context) == len(row.prompt.token_ids):  # not a later turn
        rollout.routes = answer.routes[: len(row.context) + len(rollout.token_ids) - 1].clone()
    return rollout


def routes_of(choice: dict[str, Any], tokens: int, routing: Routing) -> Tensor:
    """Return routes [tokens - 1, L, k] of a prompt and its response; the last token was never forwarded.

    Args:
        choice: one choice of a reply of ``/v1/completions``.
        tokens: number of tokens of prompt and response.
        routing: routing of the trained policy.

    Raises:
        BadReplyError: the choice has no routes, or those of another model or of other tokens.
    """
    text = choice.get("routed_experts")
    if not isinstance(text, str):
        raise BadReplyError(
            "it does not say which experts it sampled with; start it with --enable-return-routed-experts"
        )
    try:
        found = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise BadReplyError(f"its routed_experts are no array ({error}): {shown(text)}") from error
    expected = (tokens - 1, routing.layers, routing.top_k)
    if found.shape != expected:
        raise BadReplyError(f"its routed_experts have the shape {found.shape} instead of {expected}")
    if found.dtype.kind not in "iu" or not (int(found.min()) >= 0 and int(found.max()) < routing.experts):
        raise BadReplyError(f"its routed_experts are no numbers of {routing.experts} experts")
    return torch.from_numpy(found.astype(np.int64)).to(index_dtype(routing.experts))
