"""CPU seconds of the tests beside those of the committed table, which a change may not make worse by much.

    GSPO_TEST_CPU=cpu.json make test
    python -m tools.durations cpu.json            exit code 1 if the suite takes 15 % more than the table says
    python -m tools.durations cpu.json --write    the table anew

Seconds are of all processes of a test (tests/support/cpu_seconds.py). What is compared is their sum in units of a fixed
piece of work that is measured again and again during the same run: another machine, or one that is busy, changes both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "tests" / "durations.json"
SLOWEST = 50
MOST = 1.15


def summarise(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the table keeps of a run: sums, the files, the slowest tests."""
    seconds = {test: sum(parts.values()) for test, parts in found["tests"].items()}
    files: Counter[str] = Counter()
    for test, spent in seconds.items():
        files[test.partition("::")[0]] += spent
    slowest = sorted(seconds.items(), key=lambda entry: -entry[1])[:SLOWEST]
    return {
        "calibration": round(statistics.median(found["calibrations"]), 5),
        "total": round(sum(seconds.values()), 1),
        "tests": len(seconds),
        "slowest": {test: round(spent, 1) for test, spent in slowest},
        "files": {file: round(spent, 1) for file, spent in sorted(files.items()) if spent >= 0.05},
    }


def compare(now: dict[str, Any], table: dict[str, Any]) -> tuple[float, list[str]]:
    """Return how many times the table's time it took, and the files that grew most, a line each."""
    scale = table["calibration"] / now["calibration"]
    grown = {file: spent * scale - table["files"].get(file, 0.0) for file, spent in now["files"].items()}
    worst = sorted(grown.items(), key=lambda entry: -entry[1])[:10]
    return now["total"] * scale / table["total"], [f"{more:+7.1f} s  {file}" for file, more in worst if more > 1]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, or write the table."""
    parser = argparse.ArgumentParser("python -m tools.durations", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="what a run has measured: GSPO_TEST_CPU=FILE make test")
    parser.add_argument("--write", action="store_true", help="write the table anew")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args(argv)
    now = summarise(json.loads(args.file.read_text(encoding="utf-8")))
    if args.write:
        args.table.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        print(f"{now['tests']} tests, {now['total']:.0f} CPU seconds: written to {args.table}")
        return 0
    table = json.loads(args.table.read_text(encoding="utf-8"))
    times, grown = compare(now, table)
    print(f"{now['tests']} tests, {now['total']:.0f} CPU seconds: {times:.2f} times those of {args.table.name}, scaled")
    print("\n".join(grown))
    if times <= MOST:
        return 0
    print(f"error: the suite takes more than {MOST:.2f} times as long as {args.table.name} says")
    print("  fix: share a run, or mark the long form of a test that another one covers; else write the table anew")
    return 1


if __name__ == "__main__":
    sys.exit(main())
