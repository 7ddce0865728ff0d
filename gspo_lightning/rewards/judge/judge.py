"""Reward from an LLM judge."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal

from gspo_lightning.core.errors import InfrastructureError, UserError, did_you_mean
from gspo_lightning.core.neutral_sampling import NEUTRAL, refused_fields
from gspo_lightning.core.thinking import UNFINISHED, after_thinking
from gspo_lightning.rewards.judge.request import Question
from gspo_lightning.rewards.judge.server import MAX_WAIT_S, ChatServer, NoReplyError, RefusedError, check_url
from gspo_lightning.rewards.judge.verdict import UnreadableError, VerdictCache, key_of, read_verdict, weighted
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, Score

_Requests = dict[str, "asyncio.Task[dict[str, float]]"]
"""Requests of a batch by their keys: each question is sent once."""
_BATCH = 32
"""Samples per batch in a worker."""
log = logging.getLogger(__name__)
_FORMATS = ("json_schema", "json_object", "text")


class LLMJudge(Reward):
    """The score that a language model gives a completion by a rubric, over an OpenAI-compatible API.

    ``absolute`` scores each criterion from 0 to ``scale``. ``pairwise`` compares the completion with the text in the
    column ``reference``, in both orders, because judges have a position bias: 1 if it wins in both, 1/2 if the orders
    disagree. Criteria are averaged by their weights; rewards lie in [0, 1]. The text after ``</think>`` is judged. A
    sample without a reply, or with a reply without a readable verdict, is *missing*.

    Completions are data to the judge: fenced by a code that they cannot contain, which a verdict must repeat, and
    without control tokens of chat templates (docs/rewards.md). The key comes from the environment variable
    ``LLM_JUDGE_API_KEY``.

    Args:
        url: of the server (``http://host:8000``).
        model: its name there.
        rubric: criterion -> the question about it.
        weights: criterion -> weight, >= 0; 1 where not given.
        mode: ``absolute`` or ``pairwise``.
        reference: column with a right answer to score against, or (``pairwise``) the answer to compare with.
        scale: the best score of a criterion, 1 to 100.
        reasoning: the judge writes reasons before its verdict.
        response_format: how the reply is constrained: by a schema, as JSON, or not at all.
        options: further fields of a request (``{max_tokens: 500}``); null removes one (``{temperature: null}``).
            Sampling is neutral otherwise, whatever the server's ``generation_config``.
        concurrency: concurrent requests of one worker; a rank has ``data.reward_workers`` workers.
        timeout_s: seconds that an attempt may take.
        retries: attempts after the first, for timeouts, broken connections and statuses such as 429 and 500.
        backoff_s: seconds before the first of them; doubled before each further one.
        cache: file that keeps verdicts between processes and runs; None keeps them in each worker's memory.
        max_characters: longer completions are worth 0 (``model_error``), never cut.
        plain_http: whether the key may go to another host unencrypted, on a network that nobody else can read.
        agrees_with: name of a reward with known answers; how often the two agree is logged as
            ``reward/agreement/<name>``.

    Raises:
        UserError: a setting out of its range, an invalid URL, or a key that others could read.
    """

    finds_answers = True
    no_answer = f"{UNFINISHED}|an empty answer|longer than .*"

    def __init__(
        self,
        url: str,
        model: str,
        rubric: dict[str, str],
        weights: dict[str, float] | None = None,
        mode: Literal["absolute", "pairwise"] = "absolute",
        reference: str | None = None,
        scale: int = 10,
        reasoning: bool = True,
        response_format: Literal["json_schema", "json_object", "text"] = "json_schema",
        options: dict[str, Any] | None = None,
        concurrency: int = 16,
        timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        cache: str | None = None,
        max_characters: int = 20_000,
        plain_http: bool = False,
        agrees_with: str | None = None,
    ) -> None:
        _check_words(mode, response_format, reference)
        _check_numbers(scale=(scale, 1, 100), concurrency=(concurrency, 1, 1024), retries=(retries, 0, 20),
                       timeout_s=(timeout_s, 0.001, 3600), backoff_s=(backoff_s, 0, 3600),
                       max_characters=(max_characters, 1, math.inf))  # fmt: skip
        self.url = check_url(url, plain_http)
        self.model = model
        self.rubric = dict(rubric)
        self.weights = _weights(rubric, weights or {})
        self.mode = mode
        self.reference = reference
        self.scale = scale
        self.reasoning = reasoning
        self.response_format = response_format
        self.options = dict(options or {})
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s
        self.max_characters = max_characters
        self.agrees_with = agrees_with
        self.cache = VerdictCache(cache)
        self._silent_until = -math.inf
        self._silence = ""
        self._refused: set[str] = set()
        rounds = math.ceil(_BATCH * (2 if mode == "pairwise" else 1) / concurrency)
        self.deadline_s = rounds * ((retries + 1) * timeout_s + retries * MAX_WAIT_S) + 10  # its own limits come first

    def required_columns(self) -> tuple[str, ...]:
        """Return the reference column, if one is set."""
        return () if self.reference is None else (self.reference,)

    def prepare(self) -> None:
        """Import the HTTP client."""
        import aiohttp  # noqa: F401

    def score_batch(self, samples: Sequence[Sample]) -> list[Score]:
        """Judge all samples concurrently.

        Raises:
            UserError: the server refuses every request: another key, no such model.
            InfrastructureError: the server answers none of them, or did so a moment ago.
        """
        return asyncio.run(self._score_all(samples))

    async def _score_all(self, samples: Sequence[Sample]) -> list[Score]:
        if time.monotonic() < self._silent_until:  # wait for a dead server only once
            raise InfrastructureError(self._silence)
        requests: _Requests = {}
        async with ChatServer(self.url, self.concurrency, self.timeout_s, self.retries, self.backoff_s) as server:
            try:
                scores = await asyncio.gather(*(self._score_one(server, sample, requests) for sample in samples))
            finally:
                for task in requests.values():  # one request may show that none can be answered
                    task.cancel()
                ends = await asyncio.gather(*requests.values(), return_exceptions=True)
        if ends and all(isinstance(end, NoReplyError) for end in ends):
            self._silence = f"the judge at {self.url}: {ends[0]}"
            self._silent_until = time.monotonic() + MAX_WAIT_S
            raise InfrastructureError(self._silence)
        return list(scores)

    async def _score_one(self, server: ChatServer, sample: Sample, requests: _Requests) -> Score:
        if self.reference is not None and sample.columns.get(self.reference) is None:
            return Score.missing(f"the record's {self.reference} is null")
        text = after_thinking(sample.completion, sample.unfinished_thought)
        if text is None:
            return Score.model_error(UNFINISHED)
        if not text.strip():
            return Score.model_error("an empty answer")
        if len(text) > self.max_characters:
            return Score.model_error(f"longer than {self.max_characters} characters")
        tasks = []
        for question in self._questions(sample, text):
            body = self._body(question)
            key = key_of(body)
            if key not in requests:
                requests[key] = asyncio.create_task(self._verdict(server, question, body, key))
            tasks.append(requests[key])
        verdicts = await asyncio.gather(*tasks, return_exceptions=True)
        for error in verdicts:
            if isinstance(error, NoReplyError | RefusedError | UnreadableError):
                return Score.missing(str(error))
            if isinstance(error, BaseException):
                raise error
        return self._score([v for v in verdicts if isinstance(v, dict)])

    def _score(self, verdicts: list[dict[str, float]]) -> Score:
        if self.mode == "absolute":
            (verdict,) = verdicts
            return Score(weighted(verdict, self.weights), detail=_listed(verdict))
        as_first, as_second = verdicts  # values are those of the first answer: of this completion, then of the other
        swapped = {name: 1 - value for name, value in as_second.items()}
        mean = {name: (as_first[name] + swapped[name]) / 2 for name in as_first}
        disagreement = "" if as_first == swapped else "; the two orders disagree"
        return Score(weighted(mean, self.weights), detail=_listed(mean) + disagreement)

    def _questions(self, sample: Sample, text: str) -> list[Question]:
        reference = sample.columns.get(self.reference) if self.reference is not None else None
        if reference is not None and not isinstance(reference, str):
            reference = json.dumps(reference, ensure_ascii=False)
        if self.mode == "absolute":
            return [Question(self.rubric, sample.prompt, [text], reference, self.scale, self.reasoning)]
        orders = ([text, reference or ""], [reference or "", text])
        return [Question(self.rubric, sample.prompt, order, None, self.scale, self.reasoning) for order in orders]

    def _body(self, question: Question) -> dict[str, Any]:
        neutral = {name: value for name, value in NEUTRAL.items() if name not in self._refused}
        body = {"model": self.model, **neutral, **question.request(self.response_format), **self.options}
        return {name: value for name, value in body.items() if value is not None}

    async def _ask(self, server: ChatServer, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply; a server that refuses neutral sampling fields decides them itself, which is logged once."""
        while True:
            removable = [name for name in NEUTRAL if name in body and name not in self.options]
            try:
                return await server.ask(body)
            except RefusedError as error:
                refused = refused_fields(str(error), removable)
                if not refused:
                    raise
                if refused - self._refused:
                    log.warning("the judge at %s decides %s: it refuses them", self.url, ", ".join(sorted(refused)))
                self._refused |= refused
                body = {name: value for name, value in body.items() if name not in refused}

    async def _verdict(
        self, server: ChatServer, question: Question, body: dict[str, Any], key: str
    ) -> dict[str, float]:
        if (cached := self.cache.get(key)) is not None:
            return cached
        choice = await self._ask(server, body)
        scale = None if question.pairwise else self.scale
        verdict = read_verdict(choice, question.check, list(self.rubric), scale)
        self.cache.put(key, verdict)
        return verdict


def _listed(verdict: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in verdict.items())


def _check_words(mode: str, response_format: str, reference: str | None) -> None:
    if mode not in ("absolute", "pairwise"):
        raise UserError("LLMJudge.mode", f"is {mode!r}; it must be absolute or pairwise")
    if response_format not in _FORMATS:
        raise UserError("LLMJudge.response_format", f"is {response_format!r}; it must be one of {', '.join(_FORMATS)}")
    if mode == "pairwise" and reference is None:
        raise UserError("LLMJudge.reference", "is needed by mode: pairwise", fix="name the column to compare with")


def _check_numbers(**settings: tuple[float, float, float]) -> None:
    for name, (value, least, most) in settings.items():
        if not least <= value <= most:
            upper = "" if most == math.inf else f" and at most {most:g}"
            raise UserError(f"LLMJudge.{name}", f"is {value:g}; it must be at least {least:g}{upper}")


def _weights(rubric: dict[str, str], weights: dict[str, float]) -> dict[str, float]:
    if not rubric:
        raise UserError("LLMJudge.rubric", "is empty", fix="name a criterion and the question about it")
    for name, weight in weights.items():
        if name not in rubric:
            raise UserError("LLMJudge.weights", f"{name!r} is not a criterion; {did_you_mean(name, rubric)}")
        if not 0 <= weight < math.inf:
            raise UserError("LLMJudge.weights", f"{name} has {weight}; a weight is a finite number from 0 on")
    weight_of = {name: float(weights.get(name, 1.0)) for name in rubric}
    if sum(weight_of.values()) == 0:
        raise UserError("LLMJudge.weights", "are all 0", fix="give one criterion a weight")
    if sum(weight_of.values()) == math.inf:
        raise UserError("LLMJudge.weights", "add up to infinity", fix="give smaller ones: only their ratios matter")
    return weight_of
