"""Scoring of samples with one reward, the same in a worker and in the trainer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from gspo_lightning.core.errors import UserError, defined, is_own, located
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.scores import check_batch, to_score
from gspo_lightning.rewards.types import Sample, Score


def judge(name: str, reward: Reward, samples: Sequence[Sample]) -> Iterator[Score]:
    """Score samples in order, one score each; a sample that lacks a required column is *missing*.

    Scores of a reward that scores one by one are yielded as they are found. Exceptions of the reward are not caught.

    Raises:
        UserError: the reward returned something that is not a reward.
    """
    try:
        yield from _judge(name, reward, samples)
    except UserError as error:
        where = _where(reward)
        if not is_refusal(error, name) or where is None:
            raise
        fix = error.fix or "return what a reward must"
        raise UserError(error.field, error.problem, fix=f"{fix}: {where}") from None


def _where(reward: Reward) -> str | None:
    """Return where the user's code of a reward is: a method of a plug-in, or the function that a built-in one calls."""
    if not is_own(type(reward)):
        return defined(reward, "score_batch" if type(reward).score_batch is not Reward.score_batch else "score")
    function = getattr(reward, "function", None)
    return None if function is None else located(function, getattr(function, "__name__", "the function"))


def _judge(name: str, reward: Reward, samples: Sequence[Sample]) -> Iterator[Score]:
    if not reward.batched:
        for sample in samples:
            reason = reward.missing_column(sample)
            if reason is None:
                yield to_score(reward.score(**reward.arguments(sample)), name, sample.id)
            else:
                yield Score.missing(reason)
        return
    reasons = [reward.missing_column(sample) for sample in samples]
    complete = [s for s, reason in zip(samples, reasons, strict=True) if reason is None]
    values: object = reward.score_batch(complete) if complete else []
    if inspect.iscoroutine(values):  # score_batch may be async
        import asyncio  # slow to import, and most workers never use it

        values = asyncio.run(values)
    scores = iter(check_batch(values, name, complete))
    for reason in reasons:
        yield next(scores) if reason is None else Score.missing(reason)


def is_refusal(error: BaseException, name: str) -> TypeGuard[UserError]:
    """True if an error reports that a returned value is not a reward; False for exceptions of the reward itself."""
    return isinstance(error, UserError) and error.field == f"rewards.{name}"


def plugin_error(name: str, sample_id: str, error: str, trace: str, place: str = "") -> UserError:
    """Return the error that stops a run because a reward raised, at a ``place`` of a plug-in.

    The reward's own traceback is attached as a note.
    """
    at = f", at {place}" if place else ""
    refusal = UserError(
        f"rewards.{name}",
        f"raised {error} on sample {sample_id}{at}",
        fix=f"correct {place or 'the reward'}; an answer that cannot be judged is Score.model_error(...), not an "
        "exception",
    )
    refusal.add_note(trace)
    return refusal
