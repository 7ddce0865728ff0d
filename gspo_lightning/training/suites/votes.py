"""Votes of answers for maj@k: equal answers share a vote, by the comparison that grades them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gspo_lightning.core.thinking import after_thinking
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.rewards import RewardRunner, Sample
from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.text import boxed, without_hidden
from gspo_lightning.rewards.math.unboxed_answer import committed
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.verdicts import Answer, Verdict

RIGHT = "="
"""Vote of every right answer, however it is written."""
_CHARACTERS = 200
"""Most characters of a vote that are compared."""
_READ = 2000
"""Most characters of an answer that are read."""
_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Ballot:
    """A wrong answer: its text, and the text without notation that has no meaning, or its value."""

    text: str
    plain: str

    @property
    def is_integer(self) -> bool:
        """True if two such answers are equal only if their plain texts are."""
        return _INTEGER.fullmatch(self.plain) is not None


def ballot(completion: str, unfinished_thought: bool = False) -> Ballot | None:
    r"""Return the answer that a completion votes for: one in a box, or a number that its text commits to.

    >>> [vote and vote.plain for vote in map(ballot, (r"\boxed{024.0}", r"so \boxed{\dfrac12}", "I give up"))]
    ['24', '1/2', None]
    """
    text = after_thinking(completion, unfinished_thought)
    if text is None:
        return None
    text = without_hidden(text)
    extracted = boxed(text, _READ)
    if extracted.reason == "no box":
        extracted = committed(text, _READ)
    if extracted.reason:
        return None
    plain = canonical(extracted.text)
    number = literal(plain)
    if number is None and not extracted.boxed:
        return None  # the last words of a text without an answer
    if number is not None:
        plain = str(number.value)
    return Ballot(extracted.text, plain[:_CHARACTERS])


class Votes:
    """The votes on some problems.

    All right answers share a vote. Wrong ones share one if their plain texts are equal, or if the reward takes one for
    right where the other is the record's answer.

    Args:
        problems: by id.
        runner: with the reward that grades their answers.
        earlier: verdicts whose votes were cast before.
    """

    def __init__(self, problems: Mapping[str, Problem], runner: RewardRunner, earlier: Iterable[Verdict] = ()) -> None:
        self._problems = problems
        self._runner = runner
        self._cast: dict[str, dict[Ballot, str]] = defaultdict(dict)
        """Id of a problem -> its wrong ballots so far -> the vote of each."""
        for verdict in earlier:
            if verdict.vote in (None, RIGHT):
                continue
            vote = ballot(verdict.completion, verdict.unfinished_thought)
            if vote is not None:
                self._cast[verdict.id].setdefault(vote, str(verdict.vote))

    def cast(self, answers: Sequence[Answer], right: Sequence[bool]) -> list[str | None]:
        """Return the vote of each answer, None for one that has no vote.

        Args:
            answers: to the problems.
            right: whether the reward takes each for right.
        """
        ballots: list[Ballot | None] = []
        for answer, correct in zip(answers, right, strict=True):
            ballots.append(None if correct else ballot(answer.completion, answer.unfinished_thought))
        self._count_new(answers, ballots)
        votes: list[str | None] = []
        for answer, correct, cast in zip(answers, right, ballots, strict=True):
            if correct:
                votes.append(RIGHT)
            else:
                votes.append(None if cast is None else self._cast[answer.id][cast])
        return votes

    def _count_new(self, answers: Sequence[Answer], ballots: Sequence[Ballot | None]) -> None:
        """Give every ballot that has no vote yet the vote of an equal one, or else a new one."""
        new: dict[str, list[Ballot]] = defaultdict(list)
        for answer, cast in zip(answers, ballots, strict=True):
            if cast is not None and cast not in self._cast[answer.id] and cast not in new[answer.id]:
                new[answer.id].append(cast)
        equal = self._equal_pairs(new)
        for key, unseen in new.items():
            votes = self._cast[key]
            for later in unseen:
                same = [
                    vote
                    for earlier, vote in votes.items()
                    if earlier.plain == later.plain or (key, earlier, later) in equal
                ]
                votes[later] = same[0] if same else later.plain

    def _equal_pairs(self, new: Mapping[str, Sequence[Ballot]]) -> set[tuple[str, Ballot, Ballot]]:
        """Return the id, the earlier and the later ballot of all pairs that are equal in either direction."""
        pairs: list[tuple[str, Ballot, Ballot]] = []
        samples: list[Sample] = []
        for key, unseen in new.items():
            for earlier, later in _pairs(list(self._cast[key]), unseen):
                pairs.append((key, earlier, later))
                samples += [self._sample(key, earlier, later), self._sample(key, later, earlier)]
        scores = self._runner.score(samples) if samples else []
        same = [is_right(score.reward) for score in scores]
        # a reward may take B for A but not A for B: one of the two directions is enough
        return {pair for pair, forward, back in zip(pairs, same[::2], same[1::2], strict=True) if forward or back}

    def _sample(self, key: str, record: Ballot, given: Ballot) -> Sample:
        problem = self._problems[key]
        columns = {**problem.told, "answer": record.text}
        return Sample(f"{key}/votes", problem.prompt, rf"\boxed{{{given.text}}}", columns=columns)


def _pairs(voted: Sequence[Ballot], unseen: Sequence[Ballot]) -> Iterator[tuple[Ballot, Ballot]]:
    """Yield each unseen ballot with those before it, where their plain texts do not decide."""
    for number, later in enumerate(unseen):
        for earlier in (*voted, *unseen[:number]):
            if earlier.plain != later.plain and not (earlier.is_integer and later.is_integer):
                yield earlier, later
