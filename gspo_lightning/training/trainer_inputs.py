"""Queries and reward of the caller of :class:`GSPOTrainer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.types import Prompt, SystemPrompt
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.loop.experience.generate_and_score import Scorer, Unrewarded
from gspo_lightning.objectives import Objective
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
    items = [] if isinstance(queries, str | Mapping) else list(queries)
    are_texts = all(isinstance(query, str) for query in items)
    are_records = all(isinstance(query, Mapping) and "prompt" in query for query in items)
    if not items or not (are_texts or are_records):
        rule = "a list of one text or more, or of records with a prompt"
        raise UserError("queries", f"is {shown(queries)}, but must be {rule}")
    return [{"prompt": query} if isinstance(query, str) else dict(query) for query in items]


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
        built_in = ("query", "response", *BUILT_IN)
        self.plan = None
        if isinstance(reward, Reward):
            required = reward.required_columns()
        elif named:
            self.plan = make_plan(reward, "reward_function", method=False, built_in=built_in)
            required = self.plan.required
        else:
            required = ()
        for column in required:
            if column not in columns:
                hint = did_you_mean(column, [*columns, *built_in])
                problem = f"asks for {column!r}, which not every query has; {hint}"
                raise UserError("reward_function", problem, fix="give records: [{prompt: ..., answer: ...}]")

    @classmethod
    def of(
        cls, queries: Sequence[Query], records: list[dict[str, Any]], reward: RewardFunction | Reward
    ) -> CallerReward:
        """Build the scorer for these queries, given also as records (:func:`records_of`)."""
        common = set.intersection(*(set(record) for record in records))
        return cls(reward, named=not isinstance(queries[0], str), columns=sorted(common - {"prompt"}))

    def score(self, samples: Sequence[Sample]) -> list[SampleScore]:
        """Return one score per sample, in order."""
        if isinstance(self.reward, Reward):
            return [SampleScore(s.reward, {REWARD: s}, single=s.single) for s in judge(REWARD, self.reward, samples)]
        return [self._score(sample, self.reward) for sample in samples]

    def _score(self, sample: Sample, function: RewardFunction) -> SampleScore:
        value: object = function(**self._arguments(sample)) if self.plan else function(sample.prompt, sample.completion)
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

    def _arguments(self, sample: Sample) -> dict[str, Any]:
        """Return the arguments of the caller's function by name."""
        assert self.plan is not None
        aliases = {"sample": sample, "query": sample.prompt, "response": sample.completion}
        arguments: dict[str, Any] = {}
        for name in self.plan.built_in:
            arguments[name] = aliases[name] if name in aliases else getattr(sample, name)
        for name in (*self.plan.required, *self.plan.optional):
            if name in sample.columns:
                arguments[name] = sample.columns[name]
        if self.plan.takes_columns:
            arguments = dict(sample.columns) | arguments
        return arguments


def scorer_of(
    queries: Sequence[Query],
    records: list[dict[str, Any]],
    reward: RewardFunction | Reward | None,
    objective: Objective,
    *,
    has_teacher: bool,
) -> Scorer:
    """Return the scorer of a training step; with a teacher, rewards may be left out.

    Args:
        queries: as the caller gave them.
        records: the same as records (:func:`records_of`).
        reward: of the caller; None trains on the teacher alone.
        objective: of the trainer.
        has_teacher: True if the trainer has one.

    Raises:
        UserError: there is no reward, and no teacher or a term that needs correct responses; or the reward is not a
            function, or asks for a missing column.
    """
    if reward is not None:
        return CallerReward.of(queries, records, reward)
    if not has_teacher:
        raise UserError("reward_function", "is None, and there is no teacher either", fix="give one of the two")
    if objective.positive_nll_coef > 0:
        problem = f"is None, so no response can be correct for positive_nll_coef={objective.positive_nll_coef:g}"
        raise UserError("reward_function", problem, fix="give one, or set positive_nll_coef=0")
    return Unrewarded()


def shown(value: object) -> str:
    """Return a value as text for messages, at most 60 characters."""
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text
