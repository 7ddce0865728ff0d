"""The runs of a grid that are there, and those that ended with an error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.lab.grid import Cell, Grid
from gspo_lightning.commands.compare.runs import run_once
from gspo_lightning.core.errors import UserError
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run
from gspo_lightning.resume.files import write_text

__all__ = ["Results", "curve", "is_done", "make", "read"]

BROKE = 1
"""Exit code of a run that could not go on (gradients that are not finite, a collapse), with its reason on stderr."""


@dataclass(slots=True)
class Results:
    """Of a grid: ``runs[condition][variant][seed]``, why cells ``failed``, names of those that are ``missing``."""

    runs: dict[str, dict[str, dict[int, Run]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def values(self, condition: str, variant: str, of: Callable[[Run, float], float | None]) -> dict[int, float]:
        """Seed -> number, of the runs that have it."""
        tokens = self.tokens(condition)
        found = {seed: of(run, tokens) for seed, run in self.runs.get(condition, {}).get(variant, {}).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def tokens(self, condition: str) -> float:
        """That every run of a condition has trained on."""
        runs = [run for by_seed in self.runs.get(condition, {}).values() for run in by_seed.values()]
        series = [run.get("data/tokens_per_update") for run in runs]
        return min((float(s.values.sum()) for s in series if s is not None), default=0.0)


def make(cell: Cell, configs: Sequence[Path], root: Path, gspo: Callable[[list[str]], int]) -> None:
    """Make a run, from the cold start of its condition.

    One that began and could not go on (gradients that were not finite) is finished, too: that it broke is its result.
    One that did not begin is a mistake in the grid.
    """
    note, root = _note(root, cell), root.resolve()
    record = _record(root, cell)
    record.parent.mkdir(parents=True, exist_ok=True)
    write_text(record, json.dumps(cell.arguments))
    taught = [f"--model.name_or_path={_cold_start(cell, configs, root, gspo)}", "--model.cold_start=null"]
    try:
        run_once(cell.name, cell.name, [*cell.arguments, *taught], configs=configs, output=root, gspo=gspo)
    except UserError as error:
        began = any((root / cell.name).glob("version_*/scalars.jsonl"))
        if f"exit code {BROKE}" not in str(error) or not began:
            raise
        note.parent.mkdir(exist_ok=True)
        write_text(note, f"{error}\n")


def _cold_start(cell: Cell, configs: Sequence[Path], root: Path, gspo: Callable[[list[str]], int]) -> Path:
    """The folder of the model that all runs of a condition begin with; a run of one iteration makes it."""
    key = hashlib.sha256("\n".join((*map(str, configs), *cell.of_start)).encode()).hexdigest()[:12]
    folder = root / "starts" / key
    if not (there := sorted(folder.glob("cold_start/*/model.safetensors"))):
        shorter = ("--seed_everything=1", "--trainer.max_epochs=1", "--data.evaluation.limit=8")
        run_once("start", f"cold start of {cell.condition}", [*cell.of_start, *shorter], configs=configs, output=folder,
                 gspo=gspo)  # fmt: skip
        there = sorted(folder.glob("cold_start/*/model.safetensors"))
    return there[0].parent


def is_done(cell: Cell, root: Path) -> bool:
    """Whether a cell has a result.

    Raises:
        UserError: it was begun with other arguments than the grid has now.
    """
    note, record = _note(root, cell), _record(root, cell)
    if not (note.exists() or (root / cell.name).exists()):
        return False
    if not record.exists() or tuple(json.loads(record.read_text(encoding="utf-8"))) != cell.arguments:
        raise UserError(
            "experiments.lab",
            f"{root / cell.name} was begun with other arguments than the grid has now",
            fix=f"remove it (and {note}, if that is there), or take another --root",
        )
    return note.exists() or _folder(root, cell) is not None


def read(grid: Grid, root: Path) -> Results:
    """What is there."""
    found = Results({name: {variant: {} for variant in grid.variants} for name in grid.conditions})
    for cell in grid.cells():
        if not is_done(cell, root):
            found.missing.append(cell.name)
        elif (note := _note(root, cell)).exists():
            found.failed[cell.name] = note.read_text(encoding="utf-8").splitlines()[0]
        elif (folder := _folder(root, cell)) is not None:
            found.runs[cell.condition][cell.variant][cell.seed] = read_run(folder)
    return found


def curve(runs: Mapping[int, Run]) -> list[tuple[float, float]]:
    """(trained tokens so far, mean reward over seeds) of every iteration that all these runs have."""
    curves = []
    for run in runs.values():
        reward, tokens = run.get("reward/mean"), run.get("data/tokens_per_update")
        if reward is None or tokens is None:
            continue
        before = [float(tokens.values[tokens.steps < step].sum()) for step in reward.steps]
        curves.append(list(zip(before, reward.values.tolist(), strict=True)))
    together = list(zip(*curves, strict=False))
    return [(sum(x for x, _ in at) / len(at), sum(y for _, y in at) / len(at)) for at in together]


def _note(root: Path, cell: Cell) -> Path:
    return root / "failed" / f"{cell.name}.txt"


def _record(root: Path, cell: Cell) -> Path:
    """The arguments that a cell was made with."""
    return root / "arguments" / f"{cell.name}.json"


def _folder(root: Path, cell: Cell) -> Path | None:
    found = sorted((root / cell.name).glob("version_*/summary.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None
