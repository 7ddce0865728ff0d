"""``python -m experiments.smollm2.baselines_page``: the tables of docs/real_model.md on baselines and 60 updates.

With the folder of the runs (experiments/smollm2/baselines.py) it first reads them into baselines.json; without one it
prints the tables of the numbers that are there.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.smollm2.answers import read
from experiments.smollm2.baselines import ARMS, HOME, LONG, LONG_ITERATIONS, SHORT_ITERATIONS, Step, steps
from gspo_lightning.report.read import read_run
from gspo_lightning.report.statistics.intervals import of_new_problems, quantile
from gspo_lightning.report.statistics.paired import difference
from gspo_lightning.resume.changes import versions

NUMBERS = HOME / "baselines.json"
CURVES = {
    "reward/mean": "reward",
    "reward/dead_groups": "dead groups",
    "policy/entropy": "entropy, nats per token",
    "response/length": "tokens of an answer",
    "response/truncated": "truncated",
    "optim/gradient_norm": "gradient norm",
}
"""Metric of every update -> what the tables call it."""
RANGES = ((1, 2), (3, 10), (11, 20), (21, 30), (31, 40), (41, 50), (51, 60))
"""Updates of a row, both ends included."""
SHORT, LENGTHY = 2 * SHORT_ITERATIONS, 2 * LONG_ITERATIONS
Curve = Sequence[Sequence[float]]


def collect(root: Path, todo: Iterable[Step]) -> dict[str, Any]:
    """Return the numbers of the steps that are done.

    Args:
        root: folder of the runs.
        todo: the steps, done or not.
    """
    done: dict[str, float] = json.loads((root / "done.json").read_text(encoding="utf-8"))
    results: dict[str, Any] = {"versions": versions(), "cpu_seconds": done, "right": {}, "ended": {}, "curves": {}}
    for step in todo:
        if step.name not in done:
            continue
        if step.evaluates:
            answers = read(root / step.name)
            results["right"][step.result] = "".join("1" if a.right else "0" for a in answers)
            results["ended"][step.result] = round(mean(a.ended for a in answers), 4)
        else:
            results["curves"][step.run] = _curves(root / step.run)
    return results


def _curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return metric -> (update, value) of the only run in a folder."""
    (file,) = folder.glob("**/scalars.jsonl")
    run = read_run(file.parent)
    return {
        tag: [(int(s), round(float(v), 5)) for s, v in zip(series.steps, series.values, strict=True)]
        for tag in CURVES
        if (series := run.get(tag)) is not None
    }


def over(curve: Curve, low: int, high: int) -> float | None:
    """Return the mean of a curve over the updates low to high, or None if it has not all of them.

    >>> over([(1, 0.5), (2, 0.7), (3, 9.0)], 1, 2), over([(1, 0.5)], 1, 2)
    (0.6, None)
    """
    values = [value for update, value in curve if low <= update <= high]
    return mean(values) if len(values) == high - low + 1 else None


def over_seeds(values: Sequence[float]) -> str:
    """Return mean and Student's 95 % interval of values of seeds, in points; one value has no interval.

    >>> over_seeds([0.01, 0.02, 0.03]), over_seeds([0.01])
    ('+2.0 [-0.5, +4.5]', '+1.0')
    """
    middle = 100 * mean(values)
    if len(values) < 2:
        return f"{middle:+.1f}"
    half = 100 * quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"


def beside(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of both arms after 20 updates, one row a seed that both have."""
    right = results["right"]
    curves = results["curves"]
    yield f"| seed | {ARMS[0]} | {ARMS[1]} | {ARMS[0]} - {ARMS[1]}, points | norm of update 1 | norms above 1 |"
    yield "|---|---|---|---|---|---|"
    gaps = []
    for seed in _seeds(results, SHORT, ARMS):
        names = [f"{arm}-seed{seed}" for arm in ARMS]
        bits = [_bits(right[f"{name}-{SHORT}"]) for name in names]
        gap = difference(bits[1], bits[0])
        gaps.append(gap.value)
        norms = [[v for u, v in curves[name]["optim/gradient_norm"] if u <= SHORT] for name in names]
        firsts = " / ".join(f"{curve[0]:.3f}" for curve in norms) + f" = {norms[0][0] / norms[1][0]:.4f}"
        above = " / ".join(str(sum(v > 1 for v in curve)) for curve in norms)
        cells = [_share(answers) for answers in bits]
        yield f"| {seed} | {cells[0]} | {cells[1]} | {_points(gap)} | {firsts} | {above} |"
    if gaps:
        yield f"| all | | | {over_seeds(gaps)} | | |"


def along(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of the long runs, one row a range of updates; cells have a value a seed."""
    seeds = [s for s in (1, 2, 3) if f"{LONG}-seed{s}" in results["curves"]]
    tags = [tag for tag in CURVES if tag != "optim/gradient_norm"]
    yield "| updates | " + " | ".join(CURVES[tag] for tag in tags) + " |"
    yield "|---" * (len(tags) + 1) + "|"
    for low, high in RANGES:
        rows = [[over(results["curves"][f"{LONG}-seed{s}"][tag], low, high) for s in seeds] for tag in tags]
        if all(value is None for row in rows for value in row):
            continue
        yield f"| {low} to {high} | " + " | ".join(_cell(t, r) for t, r in zip(tags, rows, strict=True)) + " |"


def held_out(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of accuracy after 0, 20 and 60 updates."""
    right = results["right"]
    ended = results["ended"]
    yield "| | right | answers that end | than after 20 updates, points |"
    yield "|---|---|---|---|"
    for name, bits in right.items():
        run, _, updates = name.rpartition("-")
        title = "untrained" if run == "untrained" else f"{run.replace('-seed', ', seed ')}, {updates} updates"
        early = right.get(f"{run}-{SHORT}") if updates == str(LENGTHY) else None
        later = "" if early is None else _points(difference(_bits(early), _bits(bits)))
        yield f"| {title} | {_share(_bits(bits))} | {100 * ended[name]:.0f} % | {later} |"


def _seeds(results: Mapping[str, Any], updates: int, arms: Sequence[str]) -> list[int]:
    return [s for s in (1, 2, 3) if all(f"{arm}-seed{s}-{updates}" in results["right"] for arm in arms)]


def _bits(text: str) -> list[float]:
    return [float(bit) for bit in text]


def _share(bits: Sequence[float]) -> str:
    share = of_new_problems(bits)
    return f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def _points(gap: Any) -> str:
    return f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def _cell(tag: str, values: Sequence[float | None]) -> str:
    if tag in ("policy/entropy", "response/length"):
        digits = 2 if tag == "policy/entropy" else 1
        return ", ".join("-" if v is None else f"{v:.{digits}f}" for v in values)
    return ", ".join("-" if v is None else f"{100 * v:.0f}" for v in values) + " %"


def main(argv: Sequence[str]) -> int:
    """Read the runs, if their folder is given, and print the tables."""
    if argv:
        NUMBERS.write_text(json.dumps(collect(Path(argv[0]), steps())) + "\n", encoding="utf-8")
    results = json.loads(NUMBERS.read_text(encoding="utf-8"))
    print("\n".join([*beside(results), "", *held_out(results), "", *along(results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
