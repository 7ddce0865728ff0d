"""Teacher on a server: its log-probabilities of prompt tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from gspo_lightning.core.distributed import fail_together
from gspo_lightning.core.errors import InfrastructureError, UserError, is_finite
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rollouts.serving.answers import BadReplyError, shown
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.serving.request_monitor import RequestMonitor
from gspo_lightning.rollouts.source import LARGEST_LOGPROB

log = logging.getLogger(__name__)

FIELD = "model.teacher"
_FIX = "use a server that echoes token ids with their log-probabilities, such as vLLM, or a model in this process"
_AT_ONCE = 64
"""Maximum number of requests in flight; the server batches them."""
_TIMEOUT_S = 600.0
"""Longest time of a request, seconds."""
_HEALTH_S = 30.0
"""Longest time of a health check, seconds."""
_PROBED = 32
"""Number of tokens whose text is compared with the policy's tokenizer."""


class ServedTeacher(Teacher):
    """Teacher that echoes each row through ``POST /v1/completions`` with log-probabilities and generates nothing.

    Rows are sent as the trainer's own token ids. Servers give log-probabilities at temperature 1 for a prompt, whatever
    the request says, so rollouts must be sampled at 1.

    Args:
        endpoint: the server with its key.
        retries: attempts after the first for each row.
        backoff_s: seconds before the first retry; doubled before each further one.
    """

    def __init__(self, endpoint: Endpoint, *, retries: int = 4, backoff_s: float = 1.0) -> None:
        self.client = Client(endpoint, _TIMEOUT_S, _HEALTH_S)
        self.loop = LoopThread("teacher")
        self.retries = retries
        self.backoff_s = backoff_s
        self._model = ""

    def meet(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Send a test row: check that the server supports the requests and shares the policy's tokens.

        Raises:
            UserError: the server does not answer, lacks support, has another vocabulary, or would have to see pictures.
        """
        if image_processor_of(tokenizer) is not None:
            raise UserError(
                FIELD,
                "is a server, which is not shown the pictures of prompts",
                fix="use a teacher in this process, or a policy that reads text only",
            )
        policy_tokens = dict(_plain_tokens(tokenizer))
        ids = list(policy_tokens)
        try:
            self._model = self.loop.run(self.client.model())
            reply = self.loop.run(self.client.complete(_request(self._model, ids)))
            _logprobs(reply, ids)
            tokens = reply["choices"][0]["logprobs"].get("tokens")
        except (ServerError, UnsupportedError, BadReplyError) as error:
            raise UserError(FIELD, f"{self.client.url} cannot be the teacher: {error}", fix=_FIX) from error
        if not isinstance(tokens, list) or len(tokens) < len(ids):
            raise UserError(FIELD, f"{self.client.url} does not name the tokens of a prompt", fix=_FIX)
        for token_id, server_token in zip(ids, tokens, strict=False):
            as_id = f"token_id:{token_id}"  # vLLM's --return-tokens-as-token-ids
            if server_token not in (policy_tokens[token_id], as_id):
                raise UserError(
                    FIELD,
                    f"{self.client.url} has another vocabulary than the policy: token {token_id} is {server_token!r} "
                    f"there and {policy_tokens[token_id]!r} to the policy",
                    fix="serve a model of the same family, with the same tokenizer",
                )

    @override
    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        if temperature != 1.0:
            raise ValueError(f"a server's prompt log-probabilities are those of temperature 1, not {temperature}")
        parts = list(chain.from_iterable(batch.micro_batches for batch in batches))
        rows = list(chain.from_iterable(_rows(part) for part in parts))
        with fail_together():
            logprobs = iter(self._ask(rows))
            filled = iter([_filled(part, logprobs) for part in parts])
        return [
            dataclasses.replace(batch, micro_batches=list(islice(filled, len(batch.micro_batches))))
            for batch in batches
        ]

    def close(self) -> None:
        """Close the connections."""
        self.loop.run(self.client.close())
        self.loop.close()

    def _ask(self, rows: Sequence[list[int]]) -> list[list[float]]:
        try:
            return self.loop.run(self._all(rows))
        except UnsupportedError as error:
            raise UserError(FIELD, f"{self.client.url}: {error}", fix=_FIX) from error
        except (ServerError, BadReplyError) as error:
            raise InfrastructureError(
                f"the teacher {self.client.url} failed {self.retries + 1} times, last: {error}; start it, then go on "
                "with --ckpt_path last"
            ) from error

    async def _all(self, rows: Sequence[list[int]]) -> list[list[float]]:
        slots = asyncio.Semaphore(_AT_ONCE)
        monitor = RequestMonitor(self.client)

        async def in_slot(ids: list[int]) -> list[float]:
            async with slots:
                with monitor.counted():
                    return await self._one(ids)

        tasks = [asyncio.ensure_future(in_slot(ids)) for ids in rows]
        watch = asyncio.ensure_future(monitor.watch())
        work = asyncio.gather(*tasks)
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()  # raises: the server was given up
            return list(await work)
        finally:
            for task in (watch, *tasks):
                task.cancel()

    async def _one(self, ids: list[int]) -> list[float]:
        """Return one log-probability per token of a row, with retries; 0.0 for the first token."""
        for attempt in range(self.retries + 1):
            try:
                if not self._model:
                    self._model = await self.client.model()
                reply = await self.client.complete(_request(self._model, ids))
                return _logprobs(reply, ids)
            except (ServerError, BadReplyError) as error:
                if attempt == self.retries:
                    raise
                log.warning("%s: %s; it is asked again", self.client.url, error)
                await asyncio.sleep(self.backoff_s * 2**attempt)
        raise AssertionError("unreachable")


def _request(model: str, ids: list[int]) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": 0,
        "echo": True,
        "logprobs": 0,
        "temperature": 1.0,
        "return_token_ids": True,
    }


def _logprobs(reply: Any, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token of a row, 0.0 for the first, which has no context.

    Raises:
        BadReplyError: the reply does not match the request.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadReplyError(f"it sent no choice: {shown(reply)}")
    echoed_ids = choices[0].get("prompt_token_ids")
    if echoed_ids is not None and echoed_ids != list(ids):
        raise BadReplyError("it read another row than it was sent")
    logprobs = choices[0].get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    count = len(values) if isinstance(values, list) else 0
    if not isinstance(values, list) or count < len(ids):
        raise BadReplyError(f"it gives {count} log-probabilities for the {len(ids)} tokens of a row")
    rest = values[1 : len(ids)]
    if not all(is_finite(x) and x <= LARGEST_LOGPROB for x in rest):
        raise BadReplyError(f"its log-probabilities are none: {shown(rest)}")
    return [0.0, *map(float, rest)]


def _plain_tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, str]]:
    """Yield tokens from all over the vocabulary with plain text; other tokens may be shown in several ways."""
    stride = max(1, len(tokenizer) // (8 * _PROBED))  # eight candidates for each: many are no plain text
    count = 0
    for token_id in range(0, len(tokenizer), stride):
        text = str(tokenizer.decode([token_id]))
        if text.isascii() and text.isalnum() and token_id not in tokenizer.all_special_ids:
            yield token_id, text
            count += 1
        if count == _PROBED:
            return


def _rows(part: MicroBatch) -> list[list[int]]:
    lengths = part.lengths.tolist()
    return [part.input_ids[i, :length].tolist() for i, length in enumerate(lengths)]


def _filled(part: MicroBatch, logprobs: Iterator[list[float]]) -> MicroBatch:
    """Return the micro-batch with the log-probabilities of its rows, taken from the iterator."""
    values = torch.zeros(part.response_mask.shape, dtype=torch.float32)
    lengths = zip(part.prompt_lengths.tolist(), part.response_lengths.tolist(), strict=True)
    for i, (prompt_length, response_length) in enumerate(lengths):
        row_logprobs = next(logprobs)
        values[i, :response_length] = torch.tensor(row_logprobs[prompt_length : prompt_length + response_length])
    return dataclasses.replace(part, teacher_logprobs=values.to(part.input_ids.device))
