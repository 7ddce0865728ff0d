"""What ``gspo evaluate --completions`` costs as the file grows: seconds, answers a second, peak memory.

``python -m benchmarks.evaluation [--answers 8000 80000 400000] [--characters 2000] [--workers 2]`` prints a Markdown
table. Each line is a process of its own on 1,000 problems with integer answers in AIME's layout.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROBLEMS = 1000
WORDS = "We try the next case and see that it is impossible, so that the sum changes by one. "


def write_data(folder: Path) -> None:
    """1,000 problems."""
    rows = ({"id": i, "problem": f"What is {i}?", "answer": f"{i % 1000:03d}"} for i in range(PROBLEMS))
    (folder / "aime2024.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_answers(file: Path, count: int, characters: int) -> None:
    """One in three is right; each has so many characters."""
    thinking = (WORDS * (characters // len(WORDS) + 1))[:characters]
    with file.open("w", encoding="utf-8") as out:
        for number in range(count):
            problem, sample = number % PROBLEMS, number // PROBLEMS
            value = problem if number % 3 == 0 else problem + 1 + number % 7
            text = f"<think>{thinking}</think> The answer is \\boxed{{{value}}}."
            out.write(json.dumps({"id": problem, "sample": sample, "completion": text}) + "\n")


def measure(folder: Path, count: int, characters: int, workers: int) -> str:
    """One evaluation, as a row of the table."""
    answers, output = folder / f"{count}.jsonl", folder / f"out-{count}"
    write_answers(answers, count, characters)
    words = ["--suite=aime2024", f"--data={folder}", f"--completions={answers}", f"--output={output}"]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "gspo_lightning", "evaluate", *words, f"--workers={workers}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    shown = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(shown[-2000:])
    seconds, megabytes = time.monotonic() - began, answers.stat().st_size / 2**20
    rates = re.findall(r"([\d.]+) answers/s", shown)
    answers.unlink()
    return f"| {count:,} | {megabytes:,.0f} | {seconds:.0f} | {rates[-1]} | {usage.ru_maxrss / 1024:,.0f} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser("python -m benchmarks.evaluation", description=__doc__)
    parser.add_argument("--answers", type=int, nargs="+", default=[8_000, 80_000, 400_000])
    parser.add_argument("--characters", type=int, default=2000, help="of each answer")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(argv)
    print(
        "| answers | file, MiB | seconds | answers/s while judging | peak memory, MiB |\n|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for count in given.answers:
            print(measure(Path(folder), count, given.characters, given.workers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
