"""``gspo evaluate --compare A B``: compare two evaluations of the same problems, graded in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_lightning.commands.evaluate.run import SAMPLES
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import cell
from gspo_lightning.report.statistics.paired import Difference, difference
from gspo_lightning.rollouts.serving.chat_requests import SERVER_DECIDES
from gspo_lightning.training.suites.metrics import read_results
from gspo_lightning.training.suites.verdicts import read_verdicts

_HEAD = "| suite | A | B | B - A, 95 % | p | problems better / worse / all | only in one | verdict |"
_FOOT = "Paired by problem; p from a sign-flip test (exact up to 16 problems that differ). Below .05 is a claim."
_JUDGES = ("gspo_lightning", "math-verify")
"""Packages whose version can change the score of an answer."""


@dataclass(slots=True)
class _Problem:
    """Scores of the answers to one problem, with the hashes of its prompt and of its record."""

    prompt: str
    record: str = ""
    right: list[bool] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Side:
    """One evaluation: its folder, the ``run`` part of its results, and suite -> id -> problem."""

    folder: Path
    run: dict[str, Any]
    problems: dict[str, dict[str, _Problem]]

    def of_suite(self, key: str, suite: str) -> Any:
        """Return the entry of ``run`` for a suite; None if there is none."""
        return self.run.get(key, {}).get(suite)


def compare(before: Path, after: Path) -> str:
    """Return B minus A in Markdown: per suite the share of correct answers, paired by problem.

    Raises:
        UserError: a folder holds no finished evaluation, the two have no suite in common, or their questions or
            grading differ.
    """
    a = _read(before)
    b = _read(after)
    common = [suite for suite in a.run["suites"] if suite in b.run["suites"]]
    if not common:
        raise UserError("--compare", f"{before} and {after} have no suite in common")
    lines = [f"# {cell(after)} minus {cell(before)}", "", _HEAD, "|---" * 8 + "|"]
    notes = []
    for suite in common:
        problems_a = a.problems.get(suite, {})
        problems_b = b.problems.get(suite, {})
        ids = [identifier for identifier in problems_a if identifier in problems_b]
        if not ids:
            raise UserError("--compare", f"{suite}: no problem has verdicts in both")
        notes += [f"{suite}: {note}" for note in _unchecked(a, b, suite, ids)]
        notes += [f"{suite}: {note}" for note in _sampled_otherwise(a, b, suite)]
        shares = []
        for problems in (problems_a, problems_b):
            shares.append([sum(problems[i].right) / len(problems[i].right) for i in ids])
        left_out = len(problems_a.keys() | problems_b.keys()) - len(ids)
        lines.append(_row(suite, shares, difference(*shares), left_out))
    return "\n".join([*lines, "", _FOOT, *(f"note: {note}" for note in notes)])


def _unchecked(a: _Side, b: _Side, suite: str, ids: Sequence[str]) -> list[str]:
    """Check that the scores of two evaluations are comparable, and return notes on what could not be checked.

    Raises:
        UserError: prompts, records or rewards differ.
    """
    pairs = [(a.problems[suite][i], b.problems[suite][i]) for i in ids]
    rewards = [side.of_suite("rewards", suite) for side in (a, b)]
    differences = []
    prompts = sum(x.prompt != y.prompt for x, y in pairs)
    if prompts:
        differences.append(f"the prompts of {prompts} problems")
    records = sum(x.record != y.record for x, y in pairs if x.record and y.record)
    if records:
        differences.append(f"the records of {records} problems (answers, or other columns)")
    if all(rewards):
        reward_difference = _rewards_differ(*rewards)
        if reward_difference:
            differences.append(reward_difference)

    # older versions wrote no hash of a record and no reward, but one hash of all problems and the reward
    hashes = [side.of_suite("hashes", suite) for side in (a, b)]
    complete = all(rewards) and all(x.record and y.record for x, y in pairs)
    unknown = not complete and not (all(hashes) and hashes[0] == hashes[1])
    extents = []
    for side in (a, b):
        description = side.of_suite("suites", suite) or {}
        extents.append([description.get(key) for key in ("problems", "window")])
    if unknown and not differences and all(hashes) and extents[0] == extents[1]:  # else one may be a subset
        differences.append("problems or rewards (by the hash of both)")
    if differences:
        raise UserError(
            "--compare",
            f"{suite} was not judged in the same way in {a.folder} and {b.folder}: {' and '.join(differences)} differ",
            fix=f"judge the answers of one as those of the other: gspo evaluate --completions {a.folder / SAMPLES} "
            "--suite ... --output ...",
        )
    notes = []
    if unknown:
        notes.append("whether records and reward options are the same cannot be checked: an older version wrote them")
    versions = [[side.run.get("versions", {}).get(name) for name in _JUDGES] for side in (a, b)]
    if versions[0] != versions[1] and all(map(any, versions)):
        texts = []
        for of_side in versions:
            texts.append(" and ".join(f"{name} {version}" for name, version in zip(_JUDGES, of_side, strict=True)))
        notes.append("judged by other versions: " + "; ".join(texts))
    return notes


def _sampled_otherwise(a: _Side, b: _Side, suite: str) -> list[str]:
    """Return notes on settings of sampling that differ, and on those that a server decided or may have."""
    notes = []
    sampling_a = a.of_suite("sampling", suite)
    sampling_b = b.of_suite("sampling", suite)
    if sampling_a and sampling_b:
        names = [name for name in {**sampling_a, **sampling_b} if sampling_a.get(name) != sampling_b.get(name)]
        if names:
            pairs = ", ".join(f"{name} {sampling_a.get(name)} and {sampling_b.get(name)}" for name in names)
            notes.append(f"sampled with different settings: {pairs}")
    elif sampling_a or sampling_b:
        recorded = b if sampling_a else a
        notes.append(f"how the answers of {recorded.folder} were sampled is not known: they were recorded")
    for side in (a, b):
        answers = side.run.get("answers") or {}
        if "served" not in answers:
            continue
        if "neutral" not in answers:
            notes.append(f"{side.folder}: the server may have set top_k, min_p and penalties (by an older version)")
            continue
        decided = [*answers["server_decides"][len(SERVER_DECIDES) :], *answers["server_may_ignore"]]
        if decided:
            notes.append(f"{side.folder}: the server decided, or may have, {', '.join(decided)}")
    return notes


def _rewards_differ(a: dict[str, Any], b: dict[str, Any]) -> str:
    if a["class"] != b["class"]:
        return f"the rewards ({a['class']} and {b['class']})"
    names = [n for n in sorted({**a["options"], **b["options"]}) if a["options"].get(n) != b["options"].get(n)]
    return f"the options {', '.join(names)} of the reward {a['class']}" if names else ""


def _row(suite: str, shares: list[list[float]], difference: Difference, left_out: int) -> str:
    means = [f"{100 * sum(side) / len(side):.1f} %" for side in shares]
    ends = "-"
    if difference.low is not None and difference.high is not None:
        ends = f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
    cells = (
        cell(suite),
        *means,
        f"{100 * difference.value:+.1f} ({ends})",
        f"{difference.p:.3g}",
        f"{difference.better} / {difference.worse} / {difference.n}",
        str(left_out),
        difference.verdict,
    )
    return f"| {' | '.join(cells)} |"


def _read(folder: Path) -> _Side:
    run = read_results(folder)["run"]
    path = folder / SAMPLES
    if not path.is_file():
        raise UserError("--compare", f"{folder} has no {SAMPLES}")
    side = _Side(folder, run, {})
    for verdict in read_verdicts(path):
        if verdict.value is not None:
            problems = side.problems.setdefault(verdict.suite, {})
            problem = problems.setdefault(verdict.id, _Problem(verdict.prompt_sha256))
            problem.record = problem.record or verdict.record_sha256  # older versions did not write it
            problem.right.append(verdict.right)
    return side
