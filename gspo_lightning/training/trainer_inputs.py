"""Queries and reward of the caller of :class:`GSPOTrainer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.types import Prompt, SystemPrompt
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.rewards import Reward, Sample, SampleScore
from gspo_lightning.rewards.scores import LARGEST, is_single
from gspo_lightning.rewards.signature import BUILT_IN, make_plan
from gspo_lightning.rewards.workers.judge import judge

Query = str | Mapping[str, Any]
"""A text, or a record: ``prompt`` (text or chat messages) and any columns that the reward asks for."""
RewardFunction = Callable[..., float]
"""A function that returns a finite number, the higher the better; see :meth:`GSPOTrainer.train_step`."""
REWARD = "reward"
"""Name of the caller's reward among the parts of a score."""


def records_of(queries: Sequence[Query]) -> list[dict[str, Any]]:
    """Return queries as records.

    Raises:
        UserError: the queries are not a list of texts or of records.
    """
    given = [] if isinstance(queries, str | Mapping) else list(queries)
    texts = all(isinstance(query, str) for query in given)
    if not given or not (texts or all(isinstance(query, Mapping) and "prompt" in query for query in given)):
        what = "a list of one text or more, or of records with a prompt"
        raise UserError("queries", f"is {shown(queries)}, but must be {what}")
    return [{"prompt": query} if isinstance(query, str) else dict(query) for query in given]


def encode_queries(
    records: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    system_prompt: SystemPrompt | None,
    limit: int,
    reason: str,
) -> list[Prompt]:
    """Encode queries as prompts of the policy, in order; ids are their positions.

    Args:
        records: see :func:`records_of`.
        tokenizer: of the policy.
        system_prompt: what precedes every query.
        limit: tokens that a prompt may have.
        reason: the setting that determines the limit, for messages.

    Raises:
        UserError: a query has more tokens.
    """
    prompts = encode_prompts(
        records, tokenizer, max_prompt_tokens=1 << 30, system_prompt=system_prompt, field="queries"
    )
    for prompt in prompts:
        if len(prompt.token_ids) > limit:
            raise UserError(
                "queries",
                f"number {prompt.id}, {shown(prompt.text)}, has {len(prompt.token_ids)} tokens, "
                f"but may have {max(limit, 0)}: {reason}",
                fix="shorten or drop it (nothing is ever cut), or change that setting",
            )
    return prompts


class FixedPrompts:
    """Prompts of the caller, used in full in every iteration."""

    sources: tuple[str, ...] = ()
    learns = False

    def __init__(self, prompts: list[Prompt]) -> None:
        self.prompts = prompts

    def prompts_for_rank(self, iteration: int) -> list[Prompt]:
        """Return all prompts."""
        return self.prompts

    def replacement_prompts(self, iteration: int, limit: int) -> list[Prompt]:
        """Return none: the caller decides what is trained on."""
        return []

    def observe(self, iteration: int, rates: Mapping[int, float]) -> None:
        """Do nothing: the caller chooses the prompts."""


class CallerReward:
    """Scores rollouts with the caller's reward, in the caller's own process.

    Args:
        reward: a function of query and response, or of columns by name, or a :class:`Reward`.
        named: True if the queries are records; arguments are then filled by name.
        columns: columns that all records have.

    Raises:
        UserError: the reward is not a function, or asks for a missing column.
    """

    def __init__(self, reward: RewardFunction | Reward, *, named: bool, columns: Sequence[str] = ()) -> None:
        if not callable(reward) and not isinstance(reward, Reward):
            raise UserError("reward_function", f"is {shown(reward)}, but must be a function of query and response")
        self.reward = reward
        known = ("query", "response", *BUILT_IN)
        self.plan = None
        if isinstance(reward, Reward):
            required = reward.required_columns()
        elif named:
            self.plan = make_plan(reward, "reward_function", method=False, built_in=known)
            required = self.plan.required
        else:
            required = ()
        for column in required:
            if column not in columns:
                near = did_you_mean(column, [*columns, *known])
                problem = f"asks for {column!r}, which not every query has; {near}"
                raise UserError("reward_function", problem, fix="give records: [{prompt: ..., answer: ...}]")

    @classmethod
    def of(
        cls, queries: Sequence[Query], records: list[dict[str, Any]], reward: RewardFunction | Reward
    ) -> CallerReward:
        """Build the scorer for these queries, given also as records (:func:`records_of`)."""
        everywhere = set.intersection(*(set(record) for record in records))
        return cls(reward, named=not isinstance(queries[0], str), columns=sorted(everywhere - {"prompt"}))

    def score(self, samples: Sequence[Sample]) -> list[SampleScore]:
        """Return one score per sample, in order."""
        if isinstance(self.reward, Reward):
            return [SampleScore(s.reward, {REWARD: s}, single=s.single) for s in judge(REWARD, self.reward, samples)]
        return [self._score(sample, self.reward) for sample in samples]

    def _score(self, sample: Sample, function: RewardFunction) -> SampleScore:
        value: object = function(**self._named(sample)) if self.plan else function(sample.prompt, sample.completion)
        try:
            if isinstance(value, str | bytes):  # float("1") would work
                raise TypeError
            number = float(value)  # type: ignore[arg-type]  # numbers, and scalars of numpy and torch
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = math.nan
        if not abs(number) <= LARGEST:
            raise UserError(
                "reward_function",
                f"returned {shown(value)} for the query {shown(sample.prompt)} and the response "
                f"{shown(sample.completion)}",
                fix=f"return a finite number, at most {LARGEST:g}"
                if math.isfinite(number)
                else "return a finite number",
            )
        return SampleScore(number, {}, single=is_single(value))

    def _named(self, sample: Sample) -> dict[str, Any]:
        assert self.plan is not None
        own = {"sample": sample, "query": sample.prompt, "response": sample.completion}
        named = {name: own[name] if name in own else getattr(sample, name) for name in self.plan.built_in}
        wanted = (*self.plan.required, *self.plan.optional)
        named |= {name: sample.columns[name] for name in wanted if name in sample.columns}
        if self.plan.takes_columns:
            named |= {name: value for name, value in sample.columns.items() if name not in named}
        return named


def shown(value: object) -> str:
    """Return a value as text for messages, at most 60 characters."""
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text
