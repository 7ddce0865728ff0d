"""``gspo evaluate --compare A B``: two evaluations of the same problems."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from gspo_lightning.commands.evaluate.run import SAMPLES
from gspo_lightning.errors import UserError
from gspo_lightning.statistics.paired import Difference, difference
from gspo_lightning.suites.results import read_results
from gspo_lightning.suites.verdicts import read_verdicts

__all__ = ["compare"]


def compare(before: Path, after: Path) -> str:
    """B minus A, in Markdown: per suite the share of right answers, problem by problem.

    Raises:
        UserError: a folder holds no finished evaluation, or they have no suite in common, or asked other questions.
    """
    described = [read_results(folder)["run"]["suites"] for folder in (before, after)]
    common = [suite for suite in described[0] if suite in described[1]]
    if not common:
        raise UserError("--compare", f"{before} and {after} have no suite in common")
    values = [_values(folder) for folder in (before, after)]
    lines = [f"# {after} minus {before}", "", _HEAD, "|---" * 8 + "|"]
    for suite in common:
        a, b = values[0][suite], values[1][suite]
        ids = [identifier for identifier in a if identifier in b]
        other = [identifier for identifier in ids if a[identifier][0] != b[identifier][0]]
        if other:
            raise UserError("--compare", f"{suite}: {len(other)} problems have a different prompt in {after}")
        if not ids:
            raise UserError("--compare", f"{suite}: no problem has verdicts in both")
        shares = [[sum(side[i][1]) / len(side[i][1]) for i in ids] for side in (a, b)]
        left_out = len(set(a) | set(b)) - len(ids)
        lines.append(_row(suite, shares, difference(*shares), left_out))
    return "\n".join(
        [
            *lines,
            "",
            "Paired by problem; p from a sign-flip test (exact up to 16 problems that differ). Below .05 is a claim.",
        ]
    )


_HEAD = "| suite | A | B | B - A, 95 % | p | problems better / worse / all | only in one | verdict |"


def _row(suite: str, shares: list[list[float]], found: Difference, left_out: int) -> str:
    means = [f"{100 * sum(side) / len(side):.1f} %" for side in shares]
    ends = "-" if found.low is None or found.high is None else f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    counts = f"{found.better} / {found.worse} / {found.n}"
    cells = (*means, f"{100 * found.value:+.1f} ({ends})", f"{found.p:.3g}", counts, left_out, found.verdict)
    return f"| {suite} | " + " | ".join(map(str, cells)) + " |"


def _values(folder: Path) -> dict[str, dict[str, tuple[str, list[bool]]]]:
    """suite -> id -> (hash of the prompt, verdicts)."""
    path = folder / SAMPLES
    if not path.is_file():
        raise UserError("--compare", f"{folder} has no {SAMPLES}")
    found: dict[str, dict[str, tuple[str, list[bool]]]] = defaultdict(dict)
    for verdict in read_verdicts(path):
        if verdict.value is not None:
            found[verdict.suite].setdefault(verdict.id, (verdict.prompt_sha256, []))[1].append(verdict.right)
    return found
