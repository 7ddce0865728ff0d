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
        value = 1.0 if verdict.value == 1.0 else 0.0 if verdict.value == 0.0 else verdict.value
        vote = None if verdict.vote is None else sys.intern(verdict.vote)  # a million answers share these objects
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
    rows = {p.id: sorted(graded[p.id], key=lambda one: one.sample) for p in problems if graded.get(p.id)}
    there = [p for p in problems if p.id in rows]
    if not there:
        raise UserError(f"suite {suite.name}", "not one problem has an answer that could be judged")
    counts = [len(rows[p.id]) for p in there]
    least, most = min(counts), max(counts)
    right = [[float(is_right(one.value)) for one in rows[p.id]] for p in there]
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


def as_json(found: Mapping[str, Found]) -> dict[str, dict[str, Any]]:
    """Return ``{metric: {value, low, high, n}}``, and ``these_problems`` if that interval exists.

    >>> as_json({"avg@2": Found(Estimate(0.5, 0.1, 0.9, 4))})
    {'avg@2': {'value': 0.5, 'low': 0.1, 'high': 0.9, 'n': 4}}
    """
    return {name: _one(one) for name, one in found.items()}


def _one(found: Found) -> dict[str, Any]:
    written: dict[str, Any] = _ends(found.new_problems)
    if found.these_problems is not None and found.these_problems.low is not None:
        ends = _ends(found.these_problems)
        written["these_problems"] = {"low": ends["low"], "high": ends["high"]}
    return written


def _ends(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}


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
        found = load_json((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            str(folder), f"has no {RESULTS}", fix="give the --output of a finished gspo evaluate"
        ) from error
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / RESULTS}", "cannot be read") from error
    if not isinstance(found, dict) or "run" not in found:
        raise UserError(f"{folder / RESULTS}", "holds no results of gspo evaluate")
    return found
