"""``python -m experiments.smollm2``: results.json and ten answers from evaluations (docs/real_model.md)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from experiments.smollm2.answers import LIMIT, Answer, gain, read, shares

HOME = Path(__file__).parent


def main(argv: Sequence[str]) -> int:
    """Read the evaluations and write both files."""
    parser = argparse.ArgumentParser("experiments.smollm2", description=__doc__)
    parser.add_argument(
        "--before", type=Path, required=True, metavar="FOLDER", help="evaluation of the untrained model"
    )
    parser.add_argument("--after", nargs="+", required=True, metavar="NAME=FOLDER", help="evaluation of each run")
    parser.add_argument("--output", type=Path, default=HOME)
    options = parser.parse_args(list(argv))
    before = read(options.before)
    after = {name: read(Path(folder)) for name, folder in (run.split("=", 1) for run in options.after)}
    results = {
        "problems": len(before),
        "limit": LIMIT,
        "before": shares(before),
        "runs": {name: shares(answers) | {"gain": gain(before, answers)} for name, answers in after.items()},
    }
    (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.output / "answers.md").write_text(_ten(before, next(iter(after.values()))), encoding="utf-8")
    for judge in ("right", "lenient", "ended"):
        values = [answers[judge]["value"] for answers in results["runs"].values()]  # type: ignore[attr-defined]
        print(f"{judge}: {shares(before)[judge]['value']:.3f} -> {mean(values):.3f} {values}")
    return 0


def _ten(before: Sequence[Answer], after: Sequence[Answer]) -> str:
    """Return the answers to the first ten problems, before and after the first run, as Markdown."""
    lines = ["# Ten held-out problems, before and after", ""]
    lines += ["The first ten problems, not chosen; greedy answers, at most 192 tokens.", ""]
    for old, new in list(zip(before, after, strict=True))[:10]:
        lines += [f"**{old.prompt.splitlines()[0]}** ({old.gold})", ""]
        for when, answer in (("before", old), ("after", new)):
            lines.append(f"* {when}, {'right' if answer.right else 'wrong'}: {' '.join(answer.text.split())}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
