"""Metrics of several answers to one problem: pass@k, G-Pass@k, majority vote. Each is one number in [0, 1]."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def pass_at_k(right: int, answers: int, k: int) -> float:
    """Return the probability that at least one of k answers drawn from these is right (arXiv 2107.03374, Eq. 1).

    >>> pass_at_k(right=1, answers=4, k=2)
    0.5
    >>> pass_at_k(1, 4, 1)  # the share: it does not depend on how many were sampled
    0.25

    Raises:
        ValueError: more right ones than answers, or k is not in [1, answers].
    """
    return g_pass_at_k(right, answers, k, 1 / k if k > 0 else 0.0)


def g_pass_at_k(right: int, answers: int, k: int, share: float) -> float:
    """Return the probability that at least ``share`` of k drawn answers are right: G-Pass@k (arXiv 2412.13147, Eq. 3).

    A sum of hypergeometric probabilities, in whole numbers up to the last division: exact.

    Args:
        right: right answers.
        answers: all answers.
        k: draws without replacement, at most ``answers``.
        share: in (0, 1]; 1 requires all to be right, 1 / k is :func:`pass_at_k`.

    >>> g_pass_at_k(right=3, answers=4, k=2, share=1.0)
    0.5

    Raises:
        ValueError: more right ones than answers, or k or share out of range.
    """
    if not 0 <= right <= answers:
        raise ValueError(f"right must be in [0, {answers}], got {right}")
    if not 1 <= k <= answers:
        raise ValueError(f"k must be in [1, {answers}], as many as there are answers; got {k}")
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    needed = math.ceil(share * k - 1e-9)
    ways = sum(math.comb(right, j) * math.comb(answers - right, k - j) for j in range(needed, min(right, k) + 1))
    return ways / math.comb(answers, k)


def mg_pass_at_k(right: int, answers: int, k: int) -> float:
    """Return the mean of G-Pass@k over shares from a half to all: mG-Pass@k (arXiv 2412.13147, Eq. 6).

    Twice the integral over the share. Shares in ``(j - 1) / k`` to ``j / k`` need j right draws, so the probability of
    at least j is weighted by the part of that range above a half: ``2 / k``, and ``1 / k`` for the first j of an odd k.
    For an even k that is the paper's sum; for an odd one the paper's sum leaves out the first j.

    >>> mg_pass_at_k(right=3, answers=4, k=2), mg_pass_at_k(4, 4, 4), mg_pass_at_k(5, 5, 5)
    (0.5, 1.0, 1.0)

    Raises:
        ValueError: as :func:`g_pass_at_k`, or k is 1, where this is the share of right answers.
    """
    if k < 2:
        raise ValueError(f"k must be at least 2, got {k}")
    chances = [g_pass_at_k(right, answers, k, needed / k) for needed in range(k // 2 + 1, k + 1)]
    first = 0.5 if k % 2 else 1.0
    return 2 * (first * chances[0] + sum(chances[1:])) / k


def majority(answers: Sequence[Hashable | None], right: Sequence[bool]) -> float:
    """Return maj@k: 1 if the most frequent answer is right, else 0 (arXiv 2203.11171).

    A sample without an answer (None) has no vote. For a tie, return the share of right ones among the winners: the
    expectation over a random choice. Samples with one answer but different verdicts count by their share.

    >>> majority(["7", "7", "12", None], [True, True, False, False])
    1.0
    >>> majority(["7", "12"], [True, False])
    0.5

    Raises:
        ValueError: not one verdict per answer.
    """
    if len(answers) != len(right):
        raise ValueError(f"{len(right)} verdicts on {len(answers)} answers")
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    won = [[r for a, r in zip(answers, right, strict=True) if a == winner] for winner in votes if votes[winner] == most]
    return sum(sum(verdicts) / len(verdicts) for verdicts in won) / len(won)
