"""The runs: tasks x deals x seeds by ``gspo compare``, which makes those that are missing and leaves the others.

All runs of a task begin with one cold start, that of seed 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.cli import main as gspo

__all__ = ["TASKS", "Task", "compare", "run_all"]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
COLD_START_SEED = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained.

    Args:
        title: of its section.
        configs: of ``gspo fit``, each over those before it.
        deals: that are compared; the first one is the base of every difference.
        iterations: of a run.
        options: more arguments of ``gspo fit``.
    """

    title: str
    configs: tuple[str, ...]
    deals: tuple[str, ...] = ("groups", "stratified")
    iterations: int = 20
    options: tuple[str, ...] = ()


LIGHT = (
    "--data.evaluation.limit=128", "--model.metrics=basic",
    '--trainer.callbacks=[{"class_path": "RunSummary", "init_args": {"report": false}}]',
)  # fmt: skip
"""A smaller evaluation, and no report of single runs: half of the time."""

TASKS: Mapping[str, Task] = {
    "quickstart": Task("Quickstart", ("quickstart.yaml",), ("groups", "stratified", "shuffled")),
    "guess": Task("Guess the number", ("guess.yaml",), iterations=15, options=LIGHT),
    "moe": Task("Mixture of experts", ("quickstart.yaml", "moe.yaml"), options=LIGHT),
    "lora": Task("Low-rank adapters", ("quickstart.yaml", "lora.yaml"), options=(*LIGHT, "--model.optimizer.lr=1e-3")),
}


def run_all(root: Path, tasks: Sequence[str], seeds: Sequence[int], minutes: float | None) -> None:
    """Every seed of every task, one seed after another; what is there already stays.

    Args:
        root: where runs are kept, a folder a task.
        tasks: names in :data:`TASKS`.
        seeds: of the runs.
        minutes: after which no further seed is begun; None finishes all.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for seed in seeds:
        for name in tasks:
            if end is not None and time.monotonic() > end:
                return
            compare(root, name, [seed])


def compare(root: Path, name: str, seeds: Sequence[int]) -> None:
    """Run ``gspo compare`` in the task's folder: missing runs, then its page and picture of these seeds."""
    task, folder = TASKS[name], root / name
    folder.mkdir(parents=True, exist_ok=True)
    for config in task.configs:
        _write(folder / config, (CONFIGS / config).read_text(encoding="utf-8"))
    configs = [f"--config={config}" for config in task.configs]
    with chdir(folder):
        taught = _cold_start(configs)
        argv = ["compare", *configs, "--output=runs", "--seeds", ",".join(map(str, seeds))]
        for deal in task.deals:
            argv += ["--variant", f"{deal}: --data.deal {deal}"]
        shared = [
            f"--model.name_or_path={taught}", "--model.cold_start=null", f"--trainer.max_epochs={task.iterations}",
            "--trainer.check_val_every_n_epoch=1", "--trainer.enable_progress_bar=false", *task.options,
        ]  # fmt: skip
        assert gspo([*argv, *shared]) == 0


def _cold_start(configs: Sequence[str]) -> Path:
    """The folder of the taught model; an iteration makes it where it is missing."""

    def found() -> list[Path]:
        return sorted(Path("first/cold_start").glob("*/model.safetensors"))

    if not found():
        argv = ["fit", *configs, f"--seed_everything={COLD_START_SEED}", "--trainer.max_epochs=1"]
        assert gspo([*argv, "--trainer.default_root_dir=first"]) == 0
    return Path(os.path.relpath(found()[0].parent))


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
