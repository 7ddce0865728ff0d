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
_CHARACTERS, _READ = 200, 2000
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
    short = canonical(extracted.text)
    number = literal(short)
    if number is None and not extracted.boxed:
        return None  # the last words of a text without an answer
    return Ballot(extracted.text, (str(number.value) if number is not None else short)[:_CHARACTERS])


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
        self._problems, self._runner = problems, runner
        self._cast: dict[str, dict[Ballot, str]] = defaultdict(dict)
        for verdict in earlier:
            voted = verdict.vote not in (None, RIGHT)
            vote = ballot(verdict.completion, verdict.unfinished_thought) if voted else None
            if vote is not None:
                self._cast[verdict.id].setdefault(vote, str(verdict.vote))

    def cast(self, answers: Sequence[Answer], right: Sequence[bool]) -> list[str | None]:
        """Return the vote of each answer, None for one that has no vote.

        Args:
            answers: to the problems.
            right: whether the reward takes each for right.
        """
        ballots = [
            None if is_right else ballot(answer.completion, answer.unfinished_thought)
            for answer, is_right in zip(answers, right, strict=True)
        ]
        new: dict[str, list[Ballot]] = defaultdict(list)
        for answer, vote in zip(answers, ballots, strict=True):
            if vote is not None and vote not in self._cast[answer.id] and vote not in new[answer.id]:
                new[answer.id].append(vote)
        equal = self._equal_pairs(new)
        for key, unseen in new.items():
            votes = self._cast[key]
            for vote in unseen:
                same = [v for other, v in votes.items() if other.plain == vote.plain or (key, other, vote) in equal]
                votes[vote] = same[0] if same else vote.plain
        return [
            RIGHT if is_right else None if vote is None else self._cast[answer.id][vote]
            for answer, is_right, vote in zip(answers, right, ballots, strict=True)
        ]

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
        return {pair for pair, there, back in zip(pairs, same[::2], same[1::2], strict=True) if there or back}

    def _sample(self, key: str, record: Ballot, given: Ballot) -> Sample:
        problem = self._problems[key]
        columns = {**problem.told, "answer": record.text}
        return Sample(f"{key}/votes", problem.prompt, rf"\boxed{{{given.text}}}", columns=columns)


def _pairs(known: Sequence[Ballot], unseen: Sequence[Ballot]) -> Iterator[tuple[Ballot, Ballot]]:
    """Yield each unseen ballot with those before it, where their plain texts do not decide."""
    for number, vote in enumerate(unseen):
        for other in (*known, *unseen[:number]):
            if other.plain != vote.plain and not (other.is_integer and vote.is_integer):
                yield other, vote
