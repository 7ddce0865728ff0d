"""The answers to the same held-out prompts at every evaluation, for loggers and in a file of the run folder."""

from __future__ import annotations

from lightning.pytorch import Trainer

from gspo_lightning.callbacks.folder import run_folder
from gspo_lightning.callbacks.sink.sink import Sink
from gspo_lightning.distributed import all_gather_objects
from gspo_lightning.report.answers import AnswersFile
from gspo_lightning.training.module import GSPOModule
from gspo_lightning.types import Rollout

__all__ = ["HeldOutAnswers"]

PROMPTS = 8
COLUMNS = ("prompt", "answer", "completion", "reward", "tokens", "finish")


class HeldOutAnswers:
    """Writes ``held_out_answers`` (a table) and ``held_out_answers.jsonl``: the first 8 held-out prompts."""

    def __init__(self) -> None:
        self._file: AnswersFile | None = None

    def resume(self, trainer: Trainer) -> None:
        """Forget evaluations that the checkpoint of a resumed run does not know (on every rank)."""
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            self._open(AnswersFile(folder)).cut(trainer.global_step + 1)

    def add(self, trainer: Trainer, module: GSPOModule) -> None:
        """Those of the last evaluation (on every rank)."""
        folder = run_folder(trainer)
        mine = sorted(module.evaluator.examples, key=lambda rollout: rollout.prompt.id)[:PROMPTS]
        everybodys = [row for rows in all_gather_objects([_row(rollout) for rollout in mine]) for row in rows]
        rows = sorted(everybodys, key=lambda row: int(row["id"]))[:PROMPTS]
        if not trainer.is_global_zero:
            return
        self._open(AnswersFile(folder) if self._file is None else self._file).add(trainer.global_step, rows)
        cells = [[_cell(row[name]) for name in COLUMNS] for row in rows]
        sink = Sink.of(trainer)
        sink.table("held_out_answers", COLUMNS, cells, trainer.global_step, code=("prompt", "answer", "completion"))

    def _open(self, file: AnswersFile) -> AnswersFile:
        self._file = file
        return file


def _row(rollout: Rollout) -> dict[str, object]:
    return {
        "id": rollout.prompt.id,
        "prompt": rollout.prompt.text,
        "answer": str(rollout.prompt.columns.get("answer", "")),
        "completion": rollout.transcript,
        "reward": rollout.reward,
        "tokens": rollout.length,
        "finish": str(rollout.finish_reason),
    }


def _cell(value: object) -> str:
    return "missing" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
