"""Grade answers with the rewards and workers of training, and group equal ones for a majority vote."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from gspo_lightning.rewards import Pending, Reward, RewardRunner, Sample, SampleScore
from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.text import after_thinking, boxed, without_hidden
from gspo_lightning.rewards.math.unboxed_answer import committed
from gspo_lightning.suites.problems import Problem
from gspo_lightning.suites.suite import Suite
from gspo_lightning.suites.verdicts import Answer, Verdict
from gspo_lightning.tolerance import at_least

RIGHT = "="
"""Vote of every right answer, however it is written."""
_CHARACTERS, _READ = 200, 2000
_BATCH, _AHEAD = 256, 3
_WAIT_S = 10.0
"""Seconds after which an incomplete batch is graded: an interruption loses answers that are not graded."""


def vote(completion: str, *, right: bool) -> str | None:
    r"""Return the vote of a mathematical answer; None has no vote.

    All right answers share one vote. Wrong ones share a vote if they are the same number, or if their texts are equal
    after notation without meaning is removed. A wrong answer counts if it is in a box, or is a number that the text
    commits to.

    >>> vote(r"\boxed{024.0}", right=False), vote(r"so \boxed{\dfrac12}", right=False), vote("I give up", right=False)
    ('24', '1/2', None)
    """
    if right:
        return RIGHT
    text = after_thinking(completion)
    if text is None:
        return None
    text = without_hidden(text)
    found = boxed(text, _READ)
    if found.reason == "no box":
        found = committed(text, _READ)
    if found.reason:
        return None
    short = canonical(found.text)
    number = literal(short)
    if number is None and not found.boxed:
        return None  # the last words of a text without an answer
    return (str(number.value) if number is not None else short)[:_CHARACTERS]


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
    for batch in _batches(answers, broken):
        waiting.append((batch, runner.submit([_sample(problems[answer.id], answer) for answer in batch])))
        while len(waiting) > _AHEAD or (waiting and waiting[0][1].done()):
            yield _verdicts(suite, problems, *waiting.popleft())
    while waiting:
        yield _verdicts(suite, problems, *waiting.popleft())
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
    return Sample(
        id=f"{answer.id}/{answer.sample}",
        prompt=problem.prompt,
        completion=answer.completion,
        columns={**problem.told, **answer.conversation},
        truncated=answer.truncated,
    )


def _verdicts(
    suite: Suite,
    problems: Mapping[str, Problem],
    answers: list[Answer],
    pending: Pending,
) -> list[Verdict]:
    scores = zip(answers, pending.result(), strict=True)
    return [_verdict(suite, problems[answer.id], answer, score) for answer, score in scores]


def unread(reward: Reward, score: SampleScore) -> bool:
    """True if there was no answer to grade: none was found in the text, or it cannot be read."""
    return not score.reward and re.fullmatch(reward.no_answer, score.detail, re.DOTALL) is not None


def _verdict(suite: Suite, problem: Problem, answer: Answer, score: SampleScore) -> Verdict:
    right = score.reward is not None and bool(at_least(score.reward, 1.0))
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
        record_sha256=problem.record_sha256,
    )
