"""Metrics over the verdicts of a suite, each with its interval, and the file ``results.json`` that holds them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.report.statistics.intervals import Estimate, of_new_problems, of_these_problems
from gspo_lightning.report.statistics.samples import g_pass_at_k, majority, mg_pass_at_k, pass_at_k
from gspo_lightning.resume.files import write_text
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Verdict

_SHARES = (0.5, 0.75, 1.0)
"""Thresholds tau of G-Pass@k."""
_CLASSES = ((10**3, "small"), (10**6, "medium"), (10**10, "large"))
"""Upper bounds on the number of ways to fill a grid of each class."""
_SIZES = ("small", "medium", "large", "x-large")
_SHARED = {0.0: 0.0, 1.0: 1.0}
"""The usual values of a verdict, each as one object."""
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Graded:
    """Verdict reduced to a few numbers, so that memory does not grow with the answers' lengths."""

    sample: int
    value: float
    answered: bool
    truncated: bool
    vote: str | None

    @classmethod
    def of(cls, verdict: Verdict) -> Graded:
        """Reduce a verdict to its numbers.

        Raises:
            ValueError: the verdict is missing.
        """
        if verdict.value is None:
            raise ValueError("a missing verdict counts nowhere")
        # a million answers share a few objects
        value = _SHARED.get(verdict.value, verdict.value)
        vote = None if verdict.vote is None else sys.intern(verdict.vote)
        return cls(verdict.sample, value, verdict.answered, verdict.truncated, vote)


@dataclass(frozen=True, slots=True)
class Found:
    """One metric: an interval for problems like these, and for new answers to these problems if computed."""

    new_problems: Estimate
    these_problems: Estimate | None = None


def measure(suite: Suite, problems: Sequence[Problem], graded: Mapping[str, Sequence[Graded]]) -> dict[str, Found]:
    """Return every metric of a suite.

    A problem without a verdict is left out of all of them. If problems have different numbers of answers, pass@k,
    G-Pass@k and maj@k take the smallest as k (maj@k the first k answers), and avg@k takes all answers of each.

    Raises:
        UserError: no problem has a verdict.
    """
    judged = [problem for problem in problems if graded.get(problem.id)]
    if not judged:
        raise UserError(f"suite {suite.name}", "not one problem has an answer that could be judged")
    rows = [sorted(graded[problem.id], key=lambda answer: answer.sample) for problem in judged]
    right = [[float(is_right(answer.value)) for answer in row] for row in rows]
    least = min(len(row) for row in rows)
    most = max(len(row) for row in rows)
    metrics: dict[str, Found] = {}
    if "avg" in suite.metrics:
        metrics[f"avg@{most}"] = _averaged(right)
        metrics.update(_by_column(suite, judged, right, f"avg@{most}"))
        sound = [row for p, row in zip(judged, right, strict=True) if not p.names & suite.faulty.keys()]
        if 0 < len(sound) < len(judged):
            metrics[f"avg@{most}/without_faulty"] = _averaged(sound)
    if "pass" in suite.metrics:
        chances = [pass_at_k(int(sum(row)), len(row), least) for row in right]
        metrics[f"pass@{least}"] = Found(of_new_problems(chances))
    for k in suite.g_pass_draws(least):
        metrics.update(_stable(right, k))
    if "maj" in suite.metrics:
        won = [_wins_vote(row[:least]) for row in rows]
        metrics[f"maj@{least}"] = Found(of_new_problems(won))
    if "puzzle_accuracy" in suite.metrics:
        metrics["puzzle_accuracy"] = _averaged(right)
        metrics.update(_by_size(judged, right))
    if "cell_accuracy" in suite.metrics:
        shares = [min(1.0, sum(answer.value for answer in row) / len(row)) for row in rows]
        weights = [float(cells(problem.columns["answer"])) for problem in judged]
        metrics["cell_accuracy"] = Found(of_new_problems(shares, weights))
    metrics["no_answer"] = _averaged([[float(not answer.answered) for answer in row] for row in rows])
    metrics["truncated"] = _averaged([[float(answer.truncated) for answer in row] for row in rows])
    return metrics


def _wins_vote(answers: Sequence[Graded]) -> float:
    """Return maj@k of a problem: the chance that a right answer wins the vote."""
    return majority([answer.vote for answer in answers], [is_right(answer.value) for answer in answers])


def _by_size(problems: Sequence[Problem], right: Sequence[Sequence[float]]) -> dict[str, Found]:
    """Return the accuracy of grids of each size, the smallest first."""
    groups: dict[str, list[Sequence[float]]] = {}
    for problem, row in zip(problems, right, strict=True):
        groups.setdefault(size_class(problem.columns["answer"]), []).append(row)
    return {f"puzzle_accuracy/{size}": _averaged(groups[size]) for size in _SIZES if size in groups}


def _stable(right: Sequence[Sequence[float]], k: int) -> dict[str, Found]:
    """Return G-Pass@k for the thresholds of its paper, and mG-Pass@k."""
    counts = [(int(sum(row)), len(row)) for row in right]
    metrics = {}
    for share in _SHARES:
        chances = [g_pass_at_k(correct, n, k, share) for correct, n in counts]
        metrics[f"g-pass@{k}_{share}"] = Found(of_new_problems(chances))
    if k > 1:
        means = [min(1.0, mg_pass_at_k(correct, n, k)) for correct, n in counts]
        metrics[f"mg-pass@{k}"] = Found(of_new_problems(means))
    return metrics


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


def cells(answer: object) -> int:
    """Return the number of graded cells: houses times columns.

    >>> cells({"header": ["House", "Name", "Pet"], "rows": [["1", "Eric", "cat"], ["2", "Bob", "dog"]]})
    4

    Raises:
        ValueError: not a grid.
    """
    houses, columns = _shape(answer)
    return houses * columns


def size_class(answer: object) -> str:
    """Return ``small``, ``medium``, ``large`` or ``x-large``, by the ``(houses!) ** columns`` ways to fill the grid.

    >>> size_class({"House 1": {"Name": "Eric"}, "House 2": {"Name": "Bob"}})
    'small'
    """
    houses, columns = _shape(answer)
    ways = math.factorial(houses) ** columns
    return next((name for bound, name in _CLASSES if ways < bound), "x-large")


def _shape(answer: object) -> tuple[int, int]:
    if isinstance(answer, str):
        answer = json.loads(answer)
    if isinstance(answer, Mapping) and {"header", "rows"} <= answer.keys():
        return len(answer["rows"]), len(answer["header"]) - 1
    if not isinstance(answer, Mapping) or not answer or not all(isinstance(v, Mapping) and v for v in answer.values()):
        raise ValueError("no grid")
    return len(answer), len(next(iter(answer.values())))


def as_json(metrics: Mapping[str, Found]) -> dict[str, dict[str, Any]]:
    """Return ``{metric: {value, low, high, n}}``, and ``these_problems`` if that interval exists.

    >>> as_json({"avg@2": Found(Estimate(0.5, 0.1, 0.9, 4))})
    {'avg@2': {'value': 0.5, 'low': 0.1, 'high': 0.9, 'n': 4}}
    """
    return {name: _as_json(metric) for name, metric in metrics.items()}


def _as_json(metric: Found) -> dict[str, Any]:
    new = metric.new_problems
    these = metric.these_problems
    fields: dict[str, Any] = {"value": new.value, "low": new.low, "high": new.high, "n": new.n}
    if these is not None and these.low is not None:
        fields["these_problems"] = {"low": these.low, "high": these.high}
    return fields


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write the results atomically, also against a power failure."""
    target = folder / RESULTS
    write_text(target, json.dumps(results, indent=2) + "\n")
    return target


def torn(folder: Path) -> bool:
    """True if the file exists but is incomplete: empty, or cut off."""
    try:
        load_json((folder / RESULTS).read_bytes())
    except ValueError:
        return True
    except OSError:
        pass
    return False


def read_results(folder: Path) -> dict[str, Any]:
    """Read a file that :func:`write_results` wrote.

    Raises:
        UserError: it is missing, or is another file.
    """
    try:
        results = load_json((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            str(folder), f"has no {RESULTS}", fix="give the --output of a finished gspo evaluate"
        ) from error
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / RESULTS}", "cannot be read") from error
    if not isinstance(results, dict) or "run" not in results:
        raise UserError(f"{folder / RESULTS}", "holds no results of gspo evaluate")
    return results
