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

    def said(self, key: str, suite: str) -> Any:
        """Return the entry of ``run`` for a suite; None if there is none."""
        return self.run.get(key, {}).get(suite)


def compare(before: Path, after: Path) -> str:
    """Return B minus A in Markdown: per suite the share of correct answers, paired by problem.

    Raises:
        UserError: a folder holds no finished evaluation, the two have no suite in common, or their questions or
            grading differ.
    """
    a, b = _read(before), _read(after)
    common = [suite for suite in a.run["suites"] if suite in b.run["suites"]]
    if not common:
        raise UserError("--compare", f"{before} and {after} have no suite in common")
    lines, notes = [f"# {cell(after)} minus {cell(before)}", "", _HEAD, "|---" * 8 + "|"], []
    for suite in common:
        here, there = (side.problems.get(suite, {}) for side in (a, b))
        ids = [identifier for identifier in here if identifier in there]
        if not ids:
            raise UserError("--compare", f"{suite}: no problem has verdicts in both")
        notes += [f"{suite}: {note}" for note in (*_unchecked(a, b, suite, ids), *_sampled_otherwise(a, b, suite))]
        shares = [[sum(side[i].right) / len(side[i].right) for i in ids] for side in (here, there)]
        lines.append(_row(suite, shares, difference(*shares), len(here.keys() | there.keys()) - len(ids)))
    return "\n".join([*lines, "", _FOOT, *(f"note: {note}" for note in notes)])


def _unchecked(a: _Side, b: _Side, suite: str, ids: Sequence[str]) -> list[str]:
    """Check that the scores of two evaluations are comparable, and return notes on what could not be checked.

    Raises:
        UserError: prompts, records or rewards differ.
    """
    pairs = [(a.problems[suite][i], b.problems[suite][i]) for i in ids]
    rewards = [side.said("rewards", suite) for side in (a, b)]
    recorded = all(x.record and y.record for x, y in pairs)
    differ = []
    if other := sum(x.prompt != y.prompt for x, y in pairs):
        differ.append(f"the prompts of {other} problems")
    if other := sum(x.record != y.record for x, y in pairs if x.record and y.record):
        differ.append(f"the records of {other} problems (answers, or other columns)")
    if all(rewards) and (other_reward := _rewards_differ(*rewards)):
        differ.append(other_reward)
    hashes = [side.said("hashes", suite) for side in (a, b)]
    old = not (recorded and all(rewards)) and not (all(hashes) and hashes[0] == hashes[1])
    whole = [[(side.said("suites", suite) or {}).get(key) for key in ("problems", "window")] for side in (a, b)]
    if old and not differ and all(hashes) and whole[0] == whole[1]:  # else one may be a subset of the other
        differ.append("problems or rewards (by the hash of both)")
    if differ:
        raise UserError(
            "--compare",
            f"{suite} was not judged in the same way in {a.folder} and {b.folder}: {' and '.join(differ)} differ",
            fix=f"judge the answers of one as those of the other: gspo evaluate --completions {a.folder / SAMPLES} "
            "--suite ... --output ...",
        )
    notes = ["whether records and reward options are the same cannot be checked: an older version wrote them"] * old
    versions = [[side.run.get("versions", {}).get(name) for name in _JUDGES] for side in (a, b)]
    if versions[0] != versions[1] and all(map(any, versions)):
        words = (" and ".join(f"{n} {v}" for n, v in zip(_JUDGES, found, strict=True)) for found in versions)
        notes.append("judged by other versions: " + "; ".join(words))
    return notes


def _sampled_otherwise(a: _Side, b: _Side, suite: str) -> list[str]:
    """Return notes on settings of sampling that differ, and on those that a server decided or may have."""
    notes = []
    here, there = (side.said("sampling", suite) for side in (a, b))
    if here and there:
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if names:
            pairs = ", ".join(f"{name} {here.get(name)} and {there.get(name)}" for name in names)
            notes.append(f"sampled with different settings: {pairs}")
    elif here or there:
        notes.append(f"how the answers of {(b if here else a).folder} were sampled is not known: they were recorded")
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


def _row(suite: str, shares: list[list[float]], found: Difference, left_out: int) -> str:
    means = [f"{100 * sum(side) / len(side):.1f} %" for side in shares]
    ends = "-" if found.low is None or found.high is None else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    counts = f"{found.better} / {found.worse} / {found.n}"
    cells = (*means, f"{100 * found.value:+.1f} ({ends})", f"{found.p:.3g}", counts, left_out, found.verdict)
    return f"| {cell(suite)} | " + " | ".join(map(str, cells)) + " |"


def _read(folder: Path) -> _Side:
    run, path = read_results(folder)["run"], folder / SAMPLES
    if not path.is_file():
        raise UserError("--compare", f"{folder} has no {SAMPLES}")
    side = _Side(folder, run, {})
    for verdict in read_verdicts(path):
        if verdict.value is not None:
            found = side.problems.setdefault(verdict.suite, {})
            problem = found.setdefault(verdict.id, _Problem(verdict.prompt_sha256))
            problem.record = problem.record or verdict.record_sha256  # older versions did not write it
            problem.right.append(verdict.right)
    return side
