"""Rate verdicts in past Codeforces contests, from saved responses of the public API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.report.statistics.intervals import Estimate, quantile
from gspo_lightning.report.statistics.rating import Contest, Place
from gspo_lightning.training.suites.problems import Problem

LEAST_RATED = 200
"""A contest counts only if more rated participants than this took part."""


def read_contest(folder: Path) -> Contest:
    """Read a contest from ``standings.json`` and ``ratings.json``.

    They hold the responses of ``contest.standings`` and ``contest.ratingChanges``. Only participants found in both
    count, for the places and for the ratings: a place among others would not belong to these ratings.

    Raises:
        UserError: a file is missing or is not such a response; names it.
    """
    standings = _answer(folder / "standings.json")
    changes = _answer(folder / "ratings.json")
    try:
        ratings = {str(change["handle"]): float(change["oldRating"]) for change in changes}
        places = {}
        for row in standings["rows"]:
            handle = str(row["party"]["members"][0]["handle"])
            if handle in ratings:
                places[handle] = Place(float(row["points"]), float(row.get("penalty", 0)))
        points = {str(p["index"]): float(p["points"]) if "points" in p else None for p in standings["problems"]}
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise UserError(str(folder), f"is not a response of the public API: {error!r}") from error
    return Contest(points, list(places.values()), [ratings[handle] for handle in places])


def contest_rating(
    problems: Sequence[Problem], accepted: Mapping[str, tuple[int, int]], folder: Path
) -> tuple[Estimate, list[str]]:
    """Return the mean rating over contests with an interval, and notes for the report.

    Args:
        problems: with columns ``contest_id`` and ``index``.
        accepted: problem id -> (accepted answers, answers).
        folder: holds a folder for each contest.

    Returns:
        The mean over contests with more than :data:`LEAST_RATED` rated participants, with Student's interval over
        contests: it includes the noise of sampling and of the choice of contests, once. One contest gives no interval.

    Raises:
        UserError: no contest is left, or a file cannot be read.
    """
    contests: dict[str, dict[str, tuple[int, int]]] = {}
    for problem in problems:
        if problem.id in accepted:
            name, index = _place(problem)
            contests.setdefault(name, {})[index] = accepted[problem.id]
    ratings = []
    notes = []
    for name, results in sorted(contests.items()):
        contest = read_contest(folder / name)
        if len(contest.ratings) <= LEAST_RATED:
            notes.append(f"contest {name} has {len(contest.ratings)} rated participants, and does not count")
            continue
        absent = [index for index in contest.points if index not in results]
        if absent:
            notes.append(f"contest {name}: no answers to {', '.join(absent)}; they count as not solved")
        ratings.append(contest.expected_rating(results))
    if not ratings:
        raise UserError("suite codeforces", f"no contest in {folder} has more than {LEAST_RATED} rated participants")
    n = len(ratings)
    mean = float(np.mean(ratings))
    if n == 1:
        return Estimate(mean, None, None, 1), notes
    half_width = quantile(n - 1) * float(np.std(ratings, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half_width, mean + half_width, n), notes


def check_contests(problems: Sequence[Problem], folder: Path) -> None:
    """Check that every problem's contest can be read, before anything is graded.

    Raises:
        UserError: a problem names no contest, or a file is missing or is not a response of the public API.
    """
    names = {name for name, _ in map(_place, problems)}
    for name in sorted(names):
        read_contest(folder / name)


def _place(problem: Problem) -> tuple[str, str]:
    """Return contest and index of a problem."""
    for column in ("contest_id", "index"):
        if problem.columns.get(column) in (None, ""):
            raise UserError(
                f"problem {problem.id}", f"has no {column!r}", fix="write the columns of open-r1/codeforces"
            )
    return str(problem.columns["contest_id"]), str(problem.columns["index"])


def _answer(file: Path) -> Any:
    if not file.is_file():
        raise UserError("--data", f"{file} is missing", fix="save the public API's answer there")
    try:
        content = load_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(str(file), f"is not JSON: {error}") from error
    if isinstance(content, dict) and content.get("status", "OK") == "OK":
        return content.get("result", content)
    if isinstance(content, list):  # the result alone
        return content
    raise UserError(str(file), "is not an answer with status OK")
