"""What a run cost and what it reached, from its recorded responses and its curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.commands.compare.runs import Variant
from gspo_lightning.report.read import read_run

__all__ = ["GOAL", "Numbers", "numbers_of", "read_all"]

GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one run."""

    tokens_per_useful_group: float
    """Sampled tokens, those of replaced groups included, over the groups whose rewards are not all equal."""
    rollouts_to_goal: float | None
    """Responses sampled before the first evaluation with an accuracy of :data:`GOAL`; None: not reached."""
    accuracy: float
    """Held-out, at the end."""
    curve: list[tuple[float, float]]
    """(responses sampled so far, held-out accuracy) of every evaluation."""


def numbers_of(folder: Path) -> Numbers:
    """Read a run folder."""
    tokens = useful = responses = 0
    sampled = {0: 0}  # updates -> responses before
    files = sorted((folder / "rollouts").glob("*.jsonl"))
    for number, file in enumerate(files, 1):
        groups: dict[str, list[float]] = {}
        for line in file.read_text().splitlines():
            row = json.loads(line)
            tokens += len(row["completion_ids"])
            groups.setdefault(row["id"].partition("/")[0], []).append(row["reward"])
        useful += sum(len(set(rewards)) > 1 for rewards in groups.values())
        responses += sum(map(len, groups.values()))
        sampled[number] = responses
    accuracy = read_run(folder).get("val/accuracy")
    assert accuracy is not None, folder
    steps = int(accuracy.steps[-1]) // len(files)  # updates of an iteration
    curve = [(float(sampled[int(s) // steps]), float(v)) for s, v in zip(accuracy.steps, accuracy.values, strict=True)]
    reached = next((count for count, value in curve if value >= GOAL), None)
    return Numbers(tokens / max(useful, 1), reached, curve[-1][1], curve)


def read_all(runs: Path, variants: Mapping[str, str], seeds: list[int]) -> dict[str, dict[int, Numbers]]:
    """Name -> seed -> numbers, of the seeds that every variant has finished."""
    folders = {name: {s: _folder(runs, name, s) for s in seeds} for name in variants}
    there = [s for s in seeds if all(by_seed[s] is not None for by_seed in folders.values())]
    return {name: {s: numbers_of(f) for s in there if (f := by[s]) is not None} for name, by in folders.items()}


def _folder(runs: Path, name: str, seed: int) -> Path | None:
    """The run folder of a variant, once it is finished: it has its summary."""
    found = sorted((runs / f"{Variant(name, ()).folder}-seed{seed}").glob("version_*/summary.json"))
    return found[-1].parent if found else None
