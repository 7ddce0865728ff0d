"""Teacher on a server: its log-probabilities of prompt tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from gspo_lightning.core.distributed import fail_together
from gspo_lightning.core.errors import InfrastructureError, UserError, is_finite
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rollouts.contract import LARGEST_LOGPROB
from gspo_lightning.rollouts.serving.answers import BadReplyError, shown
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.serving.request_monitor import RequestMonitor

log = logging.getLogger(__name__)

FIELD = "model.teacher"
_FIX = "use a server that echoes token ids with their log-probabilities, such as vLLM, or a model in this process"
_AT_ONCE = 64
"""Maximum number of requests in flight; the server batches them."""
_TIMEOUT_S, _HEALTH_S = 600.0, 30.0
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
        self.client, self.loop = Client(endpoint, _TIMEOUT_S, _HEALTH_S), LoopThread("teacher")
        self.retries, self.backoff_s = retries, backoff_s
        self._model = ""

    def meet(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Send a test row: check that the server supports the requests and shares the policy's tokens.

        Raises:
            UserError: the server does not answer, lacks support, has another vocabulary, or would have to see pictures.
        """
        if image_processor_of(tokenizer) is not None:
            what = "is a server, which is not shown the pictures of prompts"
            raise UserError(FIELD, what, fix="use a teacher in this process, or a policy that reads text only")
        known = dict(_readable(tokenizer))
        ids = list(known)
        try:
            self._model = self.loop.run(self.client.model())
            reply = self.loop.run(self.client.complete(_request(self._model, ids)))
            _logprobs(reply, ids)
            tokens = reply["choices"][0]["logprobs"].get("tokens")
        except (ServerError, UnsupportedError, BadReplyError) as error:
            raise UserError(FIELD, f"{self.client.url} cannot be the teacher: {error}", fix=_FIX) from error
        if not isinstance(tokens, list) or len(tokens) < len(ids):
            raise UserError(FIELD, f"{self.client.url} does not name the tokens of a prompt", fix=_FIX)
        for token, theirs in zip(ids, tokens, strict=False):
            if theirs not in (known[token], f"token_id:{token}"):
                raise UserError(
                    FIELD,
                    f"{self.client.url} has another vocabulary than the policy: token {token} is {theirs!r} there and "
                    f"{known[token]!r} to the policy",
                    fix="serve a model of the same family, with the same tokenizer",
                )

    @override
    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        if temperature != 1.0:
            raise ValueError(f"a server's prompt log-probabilities are those of temperature 1, not {temperature}")
        parts = [part for batch in batches for part in batch.micro_batches]
        with fail_together():
            found = iter(self._ask([ids for part in parts for ids in _rows(part)]))
            filled = iter([_filled(part, found) for part in parts])
        return [dataclasses.replace(b, micro_batches=[next(filled) for _ in b.micro_batches]) for b in batches]

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
        slots, monitor = asyncio.Semaphore(_AT_ONCE), RequestMonitor(self.client)

        async def one(ids: list[int]) -> list[float]:
            async with slots:
                with monitor.counted():
                    return await self._one(ids)

        tasks, watch = [asyncio.ensure_future(one(ids)) for ids in rows], asyncio.ensure_future(monitor.watch())
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
                return _logprobs(await self.client.complete(_request(self._model, ids)), ids)
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
    echoed, found = choices[0].get("prompt_token_ids"), choices[0].get("logprobs")
    if echoed is not None and echoed != list(ids):
        raise BadReplyError("it read another row than it was sent")
    values = found.get("token_logprobs") if isinstance(found, dict) else None
    count = len(values) if isinstance(values, list) else 0
    if not isinstance(values, list) or count < len(ids):
        raise BadReplyError(f"it gives {count} log-probabilities for the {len(ids)} tokens of a row")
    rest = values[1 : len(ids)]
    if not all(is_finite(x) and x <= LARGEST_LOGPROB for x in rest):
        raise BadReplyError(f"its log-probabilities are none: {shown(rest)}")
    return [0.0, *map(float, rest)]


def _readable(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, str]]:
    """Yield tokens from all over the vocabulary with plain text; other tokens may be shown in several ways."""
    size, found = len(tokenizer), 0
    for token in range(0, size, max(1, size // (8 * _PROBED))):
        text = str(tokenizer.decode([token]))
        if text.isascii() and text.isalnum() and token not in tokenizer.all_special_ids:
            yield token, text
            found += 1
        if found == _PROBED:
            return


def _rows(part: MicroBatch) -> list[list[int]]:
    lengths = part.lengths.tolist()
    return [part.input_ids[i, :length].tolist() for i, length in enumerate(lengths)]


def _filled(part: MicroBatch, found: Iterator[list[float]]) -> MicroBatch:
    """Return the micro-batch with the log-probabilities of its rows, taken from the iterator."""
    values = torch.zeros(part.response_mask.shape, dtype=torch.float32)
    lengths = zip(part.prompt_lengths.tolist(), part.response_lengths.tolist(), strict=True)
    for i, (prompt, count) in enumerate(lengths):
        values[i, :count] = torch.tensor(next(found)[prompt : prompt + count])
    return dataclasses.replace(part, teacher_logprobs=values.to(part.input_ids.device))
