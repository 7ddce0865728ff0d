"""Grade answers with the rewards and workers of training, and group equal ones for a majority vote."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from gspo_lightning.core.tolerance import is_right
from gspo_lightning.rewards import Pending, Reward, RewardRunner, Sample, SampleScore
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Answer, Verdict
from gspo_lightning.training.suites.votes import Votes

_BATCH = 256
"""Answers graded together."""
_AHEAD = 3
"""Most batches that are graded while the next one is read."""
_WAIT_S = 10.0
"""Seconds after which an incomplete batch is graded: an interruption loses answers that are not graded."""


def judge(
    suite: Suite,
    problems: Mapping[str, Problem],
    answers: Iterable[Answer],
    runner: RewardRunner,
    earlier: Iterable[Verdict] = (),
) -> Iterator[list[Verdict]]:
    """Yield verdicts in batches, in the order of the answers; a few batches are graded while the next are read.

    If the answers end with an exception, the answers before it are graded first.

    Args:
        suite: decides how verdicts are made.
        problems: by id; every answer is to one of them.
        answers: read as they are needed: memory does not grow with their number.
        runner: with the suite's reward.
        earlier: verdicts on these problems from before an interruption, with whose votes new ones are compared.
    """
    votes = Votes(problems, runner, earlier) if "maj" in suite.metrics else None
    waiting: deque[tuple[list[Answer], Pending]] = deque()
    broken: list[Exception] = []
    for batch in _batches(answers, broken):
        waiting.append((batch, runner.submit([_sample(problems[answer.id], answer) for answer in batch])))
        while len(waiting) > _AHEAD or (waiting and waiting[0][1].done()):
            yield _verdicts(suite, problems, votes, *waiting.popleft())
    while waiting:
        yield _verdicts(suite, problems, votes, *waiting.popleft())
    if broken:
        raise broken[0]


def _batches(answers: Iterable[Answer], broken: list[Exception]) -> Iterator[list[Answer]]:
    """Yield answers in batches; an exception of their source goes to ``broken`` after the last batch."""
    remaining = iter(answers)
    batch: list[Answer] = []
    began = time.monotonic()
    while True:
        try:
            answer = next(remaining, None)
        except Exception as error:
            broken.append(error)
            answer = None
        if answer is None:
            break
        if not batch:
            began = time.monotonic()
        batch.append(answer)
        if len(batch) >= _BATCH or time.monotonic() - began > _WAIT_S:
            yield batch
            batch = []
    if batch:
        yield batch


def _sample(problem: Problem, answer: Answer) -> Sample:
    return Sample(
        id=f"{answer.id}/{answer.sample}",
        prompt=problem.prompt,
        completion=answer.completion,
        columns={**problem.told, **answer.conversation},
        truncated=answer.truncated,
        unfinished_thought=answer.unfinished_thought,
    )


def _verdicts(
    suite: Suite,
    problems: Mapping[str, Problem],
    votes: Votes | None,
    answers: list[Answer],
    pending: Pending,
) -> list[Verdict]:
    scores = pending.result()
    texts: list[str | None] = [None] * len(answers)
    if votes is not None:
        texts = votes.cast(answers, [is_right(score.reward) for score in scores])
    graded = zip(answers, scores, texts, strict=True)
    return [_verdict(suite, problems[answer.id], answer, score, vote) for answer, score, vote in graded]


def unread(reward: Reward, score: SampleScore) -> bool:
    """True if there was no answer to grade: none was found in the text, or it cannot be read."""
    return not score.reward and re.fullmatch(reward.no_answer, score.detail, re.DOTALL) is not None


def _verdict(suite: Suite, problem: Problem, answer: Answer, score: SampleScore, vote: str | None) -> Verdict:
    return Verdict(
        suite=suite.name,
        id=answer.id,
        sample=answer.sample,
        prompt_sha256=problem.sha256,
        completion=answer.completion,
        value=score.reward,
        status=str(score.status),
        reason=score.detail,
        answered=vote is not None if "maj" in suite.metrics else not unread(suite.reward, score),
        vote=vote,
        tokens=answer.tokens,
        truncated=answer.truncated,
        record_sha256=problem.record_sha256,
        unfinished_thought=answer.unfinished_thought,
    )
