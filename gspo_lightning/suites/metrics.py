"""Metrics over the verdicts of a suite, each with its interval."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gspo_lightning.errors import UserError
from gspo_lightning.statistics.intervals import Estimate, of_new_problems, of_these_problems
from gspo_lightning.statistics.samples import g_pass_at_k, majority, mg_pass_at_k, pass_at_k
from gspo_lightning.suites.problems import Problem
from gspo_lightning.suites.suite import Suite
from gspo_lightning.suites.verdicts import Verdict
from gspo_lightning.suites.zebra import cells, size_class

__all__ = ["Found", "Judged", "measure"]

_SHARES = (0.5, 0.75, 1.0)
"""Thresholds tau of G-Pass@k."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict reduced to a few numbers, so that memory does not grow with the answers' lengths."""

    sample: int
    value: float
    answered: bool
    truncated: bool
    vote: str | None

    @classmethod
    def of(cls, verdict: Verdict) -> Judged:
        """Reduce a verdict to its numbers.

        Raises:
            ValueError: the verdict is missing.
        """
        if verdict.value is None:
            raise ValueError("a missing verdict counts nowhere")
        value = 1.0 if verdict.value == 1.0 else 0.0 if verdict.value == 0.0 else verdict.value
        vote = None if verdict.vote is None else sys.intern(verdict.vote)  # a million answers share these objects
        return cls(verdict.sample, value, verdict.answered, verdict.truncated, vote)


@dataclass(frozen=True, slots=True)
class Found:
    """One metric: an interval for problems like these, and for new answers to these problems if computed."""

    new_problems: Estimate
    these_problems: Estimate | None = None


def measure(suite: Suite, problems: Sequence[Problem], judged: Mapping[str, Sequence[Judged]]) -> dict[str, Found]:
    """Return every metric of a suite.

    A problem without a verdict is left out of all of them. If problems have different numbers of answers, pass@k,
    G-Pass@k and maj@k take the smallest as k (maj@k the first k answers), and avg@k takes all answers of each.

    Args:
        suite: names the metrics.
        problems: all that were asked.
        judged: id -> verdicts.

    Raises:
        UserError: no problem has a verdict.
    """
    rows = {p.id: sorted(judged[p.id], key=lambda one: one.sample) for p in problems if judged.get(p.id)}
    there = [p for p in problems if p.id in rows]
    if not there:
        raise UserError(f"suite {suite.name}", "not one problem has an answer that could be judged")
    counts = [len(rows[p.id]) for p in there]
    least, most = min(counts), max(counts)
    right = [[float(one.value >= 1.0) for one in rows[p.id]] for p in there]
    found: dict[str, Found] = {}
    if "avg" in suite.metrics:
        found[f"avg@{most}"] = _averaged(right)
        found.update(_by_column(suite, there, right, f"avg@{most}"))
        sound = [row for p, row in zip(there, right, strict=True) if not p.names & suite.faulty.keys()]
        if 0 < len(sound) < len(there):
            found[f"avg@{most}/without_faulty"] = _averaged(sound)
    if "pass" in suite.metrics:
        chances = [pass_at_k(int(sum(row)), len(row), least) for row in right]
        found[f"pass@{least}"] = Found(of_new_problems(chances))
    for k in suite.g_pass_draws(least):
        found.update(_stable(right, k))
    if "maj" in suite.metrics:
        votes = [[one.vote for one in rows[p.id][:least]] for p in there]
        won = [majority(v, [bool(x) for x in row[:least]]) for v, row in zip(votes, right, strict=True)]
        found[f"maj@{least}"] = Found(of_new_problems(won))
    if "puzzle_accuracy" in suite.metrics:
        found["puzzle_accuracy"] = _averaged(right)
        sizes = [size_class(p.columns["answer"]) for p in there]
        for size in dict.fromkeys(sorted(sizes, key=("small", "medium", "large", "x-large").index)):
            found[f"puzzle_accuracy/{size}"] = _averaged([r for r, s in zip(right, sizes, strict=True) if s == size])
    if "cell_accuracy" in suite.metrics:
        shares = [min(1.0, sum(one.value for one in rows[p.id]) / len(rows[p.id])) for p in there]
        found["cell_accuracy"] = Found(of_new_problems(shares, [float(cells(p.columns["answer"])) for p in there]))
    unread = [[float(not one.answered) for one in rows[p.id]] for p in there]
    cut = [[float(one.truncated) for one in rows[p.id]] for p in there]
    found["no_answer"], found["truncated"] = _averaged(unread), _averaged(cut)
    return found


def _stable(right: Sequence[Sequence[float]], k: int) -> dict[str, Found]:
    """Return G-Pass@k for the thresholds of its paper, and mG-Pass@k."""
    counts = [(int(sum(row)), len(row)) for row in right]
    found = {
        f"g-pass@{k}_{share}": Found(of_new_problems([g_pass_at_k(c, n, k, share) for c, n in counts]))
        for share in _SHARES
    }
    if k > 1:
        found[f"mg-pass@{k}"] = Found(of_new_problems([min(1.0, mg_pass_at_k(c, n, k)) for c, n in counts]))
    return found


def _averaged(rows: Sequence[Sequence[float]]) -> Found:
    return Found(of_new_problems([sum(row) / len(row) for row in rows]), of_these_problems(rows))


def _by_column(
    suite: Suite, problems: Sequence[Problem], right: Sequence[Sequence[float]], name: str
) -> dict[str, Found]:
    if suite.by is None:
        return {}
    groups: dict[str, list[Sequence[float]]] = {}
    for problem, row in zip(problems, right, strict=True):
        groups.setdefault(str(problem.columns.get(suite.by)), []).append(row)
    return {f"{name}/{value}": _averaged(rows) for value, rows in sorted(groups.items())}
