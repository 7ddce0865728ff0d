"""``python -m tests.training.suites.write_records`` writes our own records, in each set's layout, to ``records``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.training.suites.made_up import Sum, aime, codeforces, contest, livecodebench, zebra

FOLDER = Path(__file__).parent / "records"
"""For ``gspo evaluate --data``."""
CONTESTS: dict[int, dict[str, float | None]] = {
    1000: {"A": 500.0, "B": 1000.0, "C": 1500.0},
    1001: {"A": None, "B": None},
}
"""Contest -> the points of its problems; the second one counts solved problems."""


def records() -> dict[str, str]:
    """Path in the folder -> text."""
    sizes = ((2, 2), (2, 4), (3, 3), (4, 4), (5, 4), (6, 6))
    sums = [
        codeforces(Sum(10 * number + place), number, index)
        for number, points in CONTESTS.items()
        for place, index in enumerate(points)
    ]
    found = {
        "aime2024.jsonl": _lines([_aime2024(i) for i in range(6)]),
        "aime2025.jsonl": _lines(
            [dict(zip(("problem", "answer", "id"), (*aime(i), str(i)), strict=True)) for i in range(6)]
        ),
        "aime2026.jsonl": _lines(
            [{"problem_idx": i + 1, "answer": int(aime(i)[1]), "problem": aime(i)[0]} for i in range(6)]
        ),
        "math500.jsonl": _lines([_math(i) for i in range(10)]),
        "zebralogic.jsonl": _lines([zebra(i, *size) for i, size in enumerate(sizes)]),
        "livecodebench.jsonl": _lines([livecodebench(Sum(i)) for i in range(6)]),
        "codeforces/problems.jsonl": _lines(sums),
    }
    for number, points in CONTESTS.items():
        for name, content in contest(number, points).items():
            found[f"codeforces/contests/{number}/{name}"] = json.dumps(content, separators=(",", ":")) + "\n"
    return found


def _aime2024(number: int) -> dict[str, Any]:
    problem, answer = aime(number)
    return {
        "id": 60 + number, "problem": problem, "solution": f"It is {answer}.", "answer": answer,
        "url": "https://example.org/", "year": "2024",
    }  # fmt: skip


def _math(number: int) -> dict[str, Any]:
    answer = rf"\frac{{{2 * number + 1}}}{{2}}"
    return {
        "problem": rf"Compute $\frac{{{number}}}{{2}} + \frac{{{number + 1}}}{{2}}$.", "answer": answer,
        "solution": rf"It is $\boxed{{{answer}}}$.", "subject": ("Algebra", "Prealgebra")[number % 2],
        "level": 1 + number % 5, "unique_id": f"test/algebra/{number}.json",
    }  # fmt: skip


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for name, text in records().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
