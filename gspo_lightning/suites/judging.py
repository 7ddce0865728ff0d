"""Grade answers with the rewards and workers of training."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from gspo_lightning.rewards import Pending, Reward, RewardRunner, Sample, SampleScore
from gspo_lightning.suites.problems import Problem
from gspo_lightning.suites.suite import Suite
from gspo_lightning.suites.verdicts import Answer, Verdict
from gspo_lightning.suites.votes import vote

__all__ = ["judge", "unread"]

_BATCH, _AHEAD = 256, 3
_WAIT_S = 10.0
"""Seconds after which an incomplete batch is graded: an interruption loses answers that are not graded."""


def judge(
    suite: Suite, problems: Mapping[str, Problem], answers: Iterable[Answer], runner: RewardRunner
) -> Iterator[list[Verdict]]:
    """Yield verdicts in batches, in the order of the answers; a few batches are graded while the next are read.

    If the answers end with an exception, the answers before it are graded first.

    Args:
        suite: decides how verdicts are made.
        problems: by id; every answer is to one of them.
        answers: read as they are needed: memory does not grow with their number.
        runner: with the suite's reward.
    """
    waiting: deque[tuple[list[Answer], Pending]] = deque()
    broken: list[Exception] = []
    record = cache(lambda identifier: problems[identifier].record_sha256)  # records may hold megabytes of tests
    for batch in _batches(answers, broken):
        waiting.append((batch, runner.submit([_sample(problems[answer.id], answer) for answer in batch])))
        while len(waiting) > _AHEAD or (waiting and waiting[0][1].done()):
            yield _verdicts(suite, problems, record, *waiting.popleft())
    while waiting:
        yield _verdicts(suite, problems, record, *waiting.popleft())
    if broken:
        raise broken[0]


def _batches(answers: Iterable[Answer], broken: list[Exception]) -> Iterator[list[Answer]]:
    """Yield answers in batches; an exception of their source goes to ``broken`` after the last batch."""
    rest, batch, began = iter(answers), list[Answer](), time.monotonic()
    while True:
        try:
            answer = next(rest, None)
        except Exception as error:
            broken.append(error)
            answer = None
        if answer is None:
            break
        began = began if batch else time.monotonic()
        batch.append(answer)
        if len(batch) >= _BATCH or time.monotonic() - began > _WAIT_S:
            yield batch
            batch = []
    if batch:
        yield batch


def _sample(problem: Problem, answer: Answer) -> Sample:
    columns = {name: value for name, value in problem.columns.items() if name not in ("id", "prompt")}
    return Sample(
        id=f"{answer.id}/{answer.sample}",
        prompt=problem.prompt,
        completion=answer.completion,
        columns=columns,
        truncated=answer.truncated,
    )


def _verdicts(
    suite: Suite,
    problems: Mapping[str, Problem],
    record: Callable[[str], str],
    answers: list[Answer],
    pending: Pending,
) -> list[Verdict]:
    scores = zip(answers, pending.result(), strict=True)
    return [_verdict(suite, problems[answer.id], record(answer.id), answer, score) for answer, score in scores]


def unread(reward: Reward, score: SampleScore) -> bool:
    """True if there was no answer to grade: none was found in the text, or it cannot be read."""
    return not score.reward and re.fullmatch(reward.no_answer, score.detail, re.DOTALL) is not None


def _verdict(suite: Suite, problem: Problem, record_sha256: str, answer: Answer, score: SampleScore) -> Verdict:
    right = score.reward is not None and score.reward >= 1.0
    voted = vote(answer.completion, right=right) if "maj" in suite.metrics else None
    return Verdict(
        suite=suite.name,
        id=answer.id,
        sample=answer.sample,
        prompt_sha256=problem.sha256,
        completion=answer.completion,
        value=score.reward,
        status=str(score.status),
        reason=score.detail,
        answered=voted is not None if "maj" in suite.metrics else not unread(suite.reward, score),
        vote=voted,
        tokens=answer.tokens,
        truncated=answer.truncated,
        record_sha256=record_sha256,
    )
