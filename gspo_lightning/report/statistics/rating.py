"""Codeforces rating from places in past contests, as CodeElo defines it (arXiv 2501.01257, section 3.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ATTEMPTS = 8
"""Most submissions to a problem."""
_POINTS_LOST = 50
"""Penalty for each submission before the accepted one, in points."""
_MINUTES_LOST = 10
"""The same in minutes, in contests that count solved problems."""


def rating(rank: int, ratings: Sequence[float]) -> int:
    """Return the rating whose expected place among these participants is ``rank``.

    The expected place of a rating r is ``1 + sum_j 1 / (1 + 10 ** ((r - R_j) / 400))``. It falls with r; the bisection
    over whole numbers in [0, max R + 100] keeps the lower end.

    Args:
        rank: 1 is the first.
        ratings: the participants' ratings before the contest.

    >>> others = [1000 + 5 * j for j in range(300)]
    >>> [rating(rank, others) for rank in (1, 50, 51, 100, 150, 299, 300)]
    [2594, 2300, 2294, 2012, 1752, 506, 383]

    Raises:
        ValueError: no participants, or no such place.
    """
    if not len(ratings) or rank < 1:
        raise ValueError(f"a place from 1 among at least one participant is needed, got {rank} among {len(ratings)}")
    others = np.asarray(ratings, dtype=np.float64)
    low = 0
    high = int(others.max()) + 100
    while high - low > 1:
        middle = (low + high) // 2
        expected = 1 + float((1 / (1 + 10 ** ((middle - others) / 400))).sum())
        if expected < rank:
            high = middle
        else:
            low = middle
    return low


def first_accepted(accepted: int, answers: int) -> list[float]:
    """Return the probability that submission 0, 1, ... is the first accepted one, over all orders of the answers.

    At most :data:`ATTEMPTS` answers are submitted. The rest to 1 is the probability that none of them is accepted.

    >>> first_accepted(accepted=1, answers=4)
    [0.25, 0.25, 0.25, 0.25]
    >>> first_accepted(2, 2), first_accepted(0, 3)
    ([1.0, 0.0], [0.0, 0.0, 0.0])
    """
    if not 0 <= accepted <= answers:
        raise ValueError(f"accepted must be in [0, {answers}], got {accepted}")
    chances = []
    none_yet = 1.0
    for attempt in range(min(answers, ATTEMPTS)):
        chances.append(none_yet * accepted / (answers - attempt))
        none_yet *= max(0, answers - accepted - attempt) / (answers - attempt)
    return chances


@dataclass(frozen=True, slots=True)
class Place:
    """Result that determines a place: more points (or problems), then less penalty."""

    points: float
    penalty: float = 0.0

    def beaten_by(self, other: Place) -> bool:
        """True if the other is placed strictly before this one."""
        return other.points > self.points or (other.points == self.points and other.penalty < self.penalty)


@dataclass(frozen=True)
class Contest:
    """A past contest: points of its problems (None: solved problems are counted), standings, participants' ratings."""

    points: dict[str, float | None]
    standings: Sequence[Place]
    ratings: Sequence[float]

    def rank(self, place: Place) -> int:
        """Return the place in the official standings: one more than the number of those before it."""
        return 1 + sum(place.beaten_by(other) for other in self.standings)

    def expected_rating(self, results: dict[str, tuple[int, int]]) -> float:
        """Return the mean rating over all orders in which the answers to each problem may be submitted.

        Args:
            results: problem -> (accepted answers, answers); a problem without answers counts as not solved.
        """
        ranks: dict[int, float] = {}
        for place, chance in outcomes(self.points, results):
            rank = self.rank(place)
            ranks[rank] = ranks.get(rank, 0.0) + chance
        return sum(chance * rating(rank, self.ratings) for rank, chance in ranks.items())


def outcomes(points: dict[str, float | None], results: dict[str, tuple[int, int]]) -> Iterator[tuple[Place, float]]:
    """Yield possible results of a contest with their probabilities: the convolution over its problems."""
    total: dict[tuple[float, float], float] = {(0.0, 0.0): 1.0}
    for name, worth in points.items():
        accepted, answers = results.get(name, (0, 0))
        chances = first_accepted(accepted, answers)
        parts = [(_gain(worth, attempt), chance) for attempt, chance in enumerate(chances) if chance > 0]
        parts.append(((0.0, 0.0), max(0.0, 1.0 - sum(chances))))
        convolved: dict[tuple[float, float], float] = {}
        for (before, chance), (gain, chance_of_gain) in itertools.product(total.items(), parts):
            if chance_of_gain > 0:
                after = (before[0] + gain[0], before[1] + gain[1])
                convolved[after] = convolved.get(after, 0.0) + chance * chance_of_gain
        total = convolved
    for (score, penalty), chance in total.items():
        yield Place(score, penalty), chance


def _gain(worth: float | None, attempt: int) -> tuple[float, float]:
    if worth is None:
        return 1.0, float(_MINUTES_LOST * attempt)
    return max(0.0, worth - _POINTS_LOST * attempt), 0.0
