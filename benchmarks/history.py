"""Results of benchmarks over time: one JSON object a line and result, with the processor that it was measured on.

``python -m benchmarks.history FILE.json ...`` adds results and writes the page anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "add", "lines_of", "main", "read", "table"]

FOLDER = Path(__file__).parent / "history"
NAME = "results.jsonl"
ABOUT = ("date", "commit", "processor", "torch", "transformers", "python", "threads")
"""What every line says of its run."""
HEAD = """# History

One line a result, oldest first; `results.jsonl` holds them as JSON. `python -m benchmarks.history FILE.json` adds those
of `python -m benchmarks --output` or `--against`, and writes this page.

**What can be compared.** `ratio` is TRL's CPU time (or memory) divided by this package's in the same run: it can be
compared across processors, roughly. Seconds and MiB can be compared only on the same processor with the same torch; on
virtual machines they move from day to day. `spread` is from the lowest to the highest round. A line that begins with
`against` was measured in pairs on one machine: its ratio is the CPU time of a commit divided by that of an earlier one,
its spread the 95 % interval of the ratio, and it needs no other line.

| date | commit | what | value | spread | ratio | processor | torch |
|---|---|---|---|---|---|---|---|
"""


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines of one file of results.

    Raises:
        ValueError: the file says nothing of its processor.
    """
    found = json.loads(file.read_text())
    about = found.get("about") if isinstance(found, dict) else None
    if not about or not about.get("processor"):
        raise ValueError(f"{file} names no processor: it cannot be compared with anything")
    common = {key: about.get(key) for key in ABOUT} | {"command": about.get("command")}
    own = [*_steps(found.get("comparisons", [])), *_memory(found.get("memory", [])), *_real(found)]
    own += found.get("against", [])
    return [common | line for line in own]


def _steps(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for case in comparisons:
        ours, trl = case["ours"], case["trl"]
        yield {
            "what": f"{case['subject']} {case['model']} {case['workload']}", "unit": "CPU s", "value": ours["cpu"],
            "low": ours["cpu_low"], "high": ours["cpu_high"], "rounds": ours["rounds"],
            "ratio": trl["cpu"] / ours["cpu"] if trl else None,
        }  # fmt: skip


def _memory(cases: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    peaks = {case["case"]: case["mebibytes"] for case in cases}
    if (ours := peaks.get("ours")) is not None:
        trl = peaks.get("TRL, same micro-batch")
        yield {
            "what": "memory of a mini-batch", "unit": "MiB", "value": ours, "low": ours, "high": ours, "rounds": 1,
            "ratio": trl / ours if trl else None,
        }  # fmt: skip


def _real(found: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the lines of ``python -m benchmarks.real``."""
    for name, method in found.get("methods", {}).items():
        rounds = sum((one["side"], one["method"]) == ("ours", name) for one in found["rounds"])
        for key, unit, ratio in (("cpu_s", "CPU s", "cpu_ratio"), ("peak_mib", "MiB", "memory_ratio")):
            value, low, high = method["ours"][key]
            trl = method[ratio][0]
            yield {
                "what": f"step SmolLM2-135M {name}", "unit": unit, "value": value, "low": low, "high": high,
                "rounds": rounds, "ratio": trl if unit == "CPU s" else 1 / trl,
            }  # fmt: skip


def read(folder: Path) -> list[dict[str, Any]]:
    """Return all lines of a history, by date."""
    file = folder / NAME
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return sorted(rows, key=lambda row: str(row["date"]))


def add(folder: Path, lines: Sequence[Mapping[str, Any]]) -> int:
    """Append the lines that a history does not have yet; return their number."""
    known = read(folder)
    new = [line for line in lines if line not in known]
    with (folder / NAME).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in new)
    return len(new)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of a history."""
    text = HEAD
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        low, high, value = (
            f"{row[key]:,.0f}" if row[key] > 100 else f"{row[key]:.3g}" for key in ("low", "high", "value")
        )
        spread, value = f"{low} to {high}, n = {row['rounds']}", f"{value} {row['unit']}"
        cells = [
            str(row["date"])[:10],
            row["commit"],
            row["what"],
            value,
            spread,
            ratio,
            row["processor"],
            row["torch"],
        ]
        text += f"| {' | '.join(map(str, cells))} |\n"
    return text


def main(argv: Sequence[str]) -> int:
    """Add files of results; what is there already is left out."""
    parser = argparse.ArgumentParser("python -m benchmarks.history", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="JSON of python -m benchmarks --output, or of --against")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the history is")
    given = parser.parse_args(argv)
    new = add(given.folder, [line for file in given.files for line in lines_of(file)])
    (given.folder / "README.md").write_text(table(read(given.folder)))
    print(f"{new} new lines in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
