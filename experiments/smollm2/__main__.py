"""``python -m experiments.smollm2``: results.json, figure and ten answers from evaluations (docs/real_model.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.smollm2.answers import LIMIT, Answer, gain, read, shares
from experiments.smollm2.picture import JUDGES, draw
from gspo_lightning.report.read import read_run
from gspo_lightning.report.style import save
from gspo_lightning.resume.changes import versions

HOME = Path(__file__).parent
CURVES = ("val/accuracy", "val/terminated", "reward/mean", "reward/dead_groups", "policy/entropy", "response/truncated")


def main(argv: Sequence[str]) -> int:
    """Read evaluations and runs, and write the files."""
    parser = argparse.ArgumentParser("experiments.smollm2", description=__doc__)
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="evaluation of the untrained model; without it no gains of --others",
    )
    parser.add_argument(
        "--after",
        nargs="+",
        metavar="NAME=FOLDER",
        help="evaluation of each run; without it the runs of results.json stay",
    )
    parser.add_argument(
        "--others", nargs="+", default=[], metavar="NAME=FOLDER", help="evaluations of models trained in other ways"
    )
    parser.add_argument("--runs", nargs="+", default=[], type=Path, metavar="FOLDER", help="the runs, in this order")
    parser.add_argument("--cpu_seconds", nargs="+", default=[], type=float, help="of the runs, in this order")
    parser.add_argument("--output", type=Path, default=HOME, metavar="FOLDER", help="of results.json and answers.md")
    parser.add_argument("--picture", type=Path, default=Path("docs/real_model.png"), metavar="FILE")
    options = parser.parse_args(list(argv))
    before, file = None if options.before is None else read(options.before), options.output / "results.json"
    after, others = _evaluations(options.after or []), _evaluations(options.others)
    if before is None and after:
        parser.error("--after needs --before")
    results: dict[str, Any]
    if before is None or not after:
        results = json.loads(file.read_text("utf-8"))
    else:
        results = {
            "problems": len(before),
            "limit": LIMIT,
            "machine": {"cores": os.cpu_count(), "threads": 1} | versions(),
            "before": shares(before),
            "runs": {name: shares(answers) | {"gain": gain(before, answers)} for name, answers in after.items()},
        }
        (options.output / "answers.md").write_text(_ten(before, next(iter(after.values()))), encoding="utf-8")
    for name, answers in others.items():
        gained = {} if before is None else {"gain": gain(before, answers)}
        results.setdefault("others", {})[name] = shares(answers) | gained
    for run, folder in zip(results["runs"].values(), options.runs, strict=False):
        run["curves"] = _curves(folder)
    for run, seconds in zip(results["runs"].values(), options.cpu_seconds, strict=False):
        run["cpu_seconds"] = seconds
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if all("curves" in run for run in results["runs"].values()):
        save(draw(results), options.picture)
    for judge in JUDGES:
        values = [run[judge]["value"] for run in results["runs"].values()]
        print(f"{judge}: {results['before'][judge]['value']:.3f} -> {mean(values):.3f} {values}")
    return 0


def _evaluations(named: Sequence[str]) -> dict[str, list[Answer]]:
    return {name: read(Path(folder)) for name, folder in (one.split("=", 1) for one in named)}


def _curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return tag -> (update, value) of a run."""
    found = {tag: read_run(folder).get(tag) for tag in CURVES}
    return {
        tag: [(int(step), round(float(value), 4)) for step, value in zip(one.steps, one.values, strict=True)]
        for tag, one in found.items()
        if one is not None
    }


def _ten(before: Sequence[Answer], after: Sequence[Answer]) -> str:
    """Return the answers to the first ten problems, before and after the first run, as Markdown."""
    lines = ["# Ten held-out problems, before and after", ""]
    lines += ["The first ten problems, not chosen; greedy answers, at most 128 tokens.", ""]
    for old, new in list(zip(before, after, strict=True))[:10]:
        lines += [f"**{old.prompt.splitlines()[0]}** ({old.gold})", ""]
        for when, answer in (("before", old), ("after", new)):
            lines.append(f"* {when}, {'right' if answer.right else 'wrong'}: {' '.join(answer.text.split())}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
