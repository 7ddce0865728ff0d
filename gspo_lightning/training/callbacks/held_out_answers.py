"""Write answers to the same held-out prompts, and the scores of all, at every evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from gspo_lightning.core.distributed import all_gather_objects
from gspo_lightning.core.pictures import Media
from gspo_lightning.core.types import Rollout
from gspo_lightning.report.answers import ANSWERS, SCORES, AnswersFile, keep_thumbnails
from gspo_lightning.training.callbacks.folder import run_folder
from gspo_lightning.training.callbacks.sheet import Answer, thumbnails
from gspo_lightning.training.callbacks.sink import Sink
from gspo_lightning.training.evaluation.metrics import Score
from gspo_lightning.training.module import GSPOModule

PROMPTS = 8
COLUMNS = ("prompt", "answer", "completion", "reward", "tokens", "finish")


class HeldOutAnswers:
    """Writes ``held_out_answers`` (a table) and ``held_out_answers.jsonl`` for the first 8 held-out prompts.

    For prompts with pictures, it also writes ``held_out_pictures`` (a picture) and thumbnails to ``pictures/`` of the
    run folder. ``held_out_scores.jsonl`` gets the score of every held-out prompt, from which reports compute paired
    differences.
    """

    def __init__(self) -> None:
        self._files: dict[str, AnswersFile] = {}

    def resume(self, trainer: Trainer) -> None:
        """Drop evaluations made after the checkpoint of a resumed run (must be called on every rank)."""
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            for name in (ANSWERS, SCORES):
                self._files[name] = AnswersFile(folder, name)
                self._files[name].cut(trainer.global_step + 1)

    def add(self, trainer: Trainer, module: GSPOModule) -> None:
        """Write the answers of the last evaluation (must be called on every rank)."""
        folder = run_folder(trainer)
        rows, thumbnails_by_row = _first_answers(module.evaluator.examples)
        scores = [score for rank in all_gather_objects(list(module.evaluator.scores)) for score in rank]
        if not trainer.is_global_zero:
            return
        self._file(folder, ANSWERS).add(trainer.global_step, rows)
        self._file(folder, SCORES).add(trainer.global_step, [_columns(scores)])
        cells = [[_cell(row[name]) for name in COLUMNS] for row in rows]
        sink = Sink.of(trainer)
        sink.table("held_out_answers", COLUMNS, cells, trainer.global_step, code=("prompt", "answer", "completion"))
        answers = []
        for row, files, texts in zip(rows, thumbnails_by_row, cells, strict=True):
            keep_thumbnails(folder, files)
            pictures = row.get("pictures", ())
            answers.append(Answer(list(files.values()), len(pictures), list(zip(COLUMNS, texts, strict=True))))
        sink.sheet("held_out_pictures", answers, trainer.global_step)

    def _file(self, folder: Path, name: str) -> AnswersFile:
        if name not in self._files:
            self._files[name] = AnswersFile(folder, name)
        return self._files[name]


def _first_answers(examples: Iterable[Rollout]) -> tuple[list[dict[str, Any]], list[dict[str, bytes]]]:
    """Return rows of the answers to the first prompts of all ranks, and the thumbnails of each; a collective."""
    of_rank = sorted(examples, key=lambda rollout: rollout.prompt.id)[:PROMPTS]
    answers = [(_row(rollout), small_files(rollout.prompt.media)) for rollout in of_rank]
    of_all_ranks = [answer for rank in all_gather_objects(answers) for answer in rank]
    first = sorted(of_all_ranks, key=lambda answer: int(answer[0]["id"]))[:PROMPTS]
    return [row for row, _ in first], [files for _, files in first]


def picture_names(media: Media) -> dict[str, list[str]]:
    """Return the hashes of a prompt's pictures under ``pictures``; an empty dict if it has none."""
    return {"pictures": [picture.sha256 for picture in media]} if media else {}


def small_files(media: Media) -> dict[str, bytes]:
    """Return hash -> thumbnail for the pictures that are shown."""
    return {picture.sha256: file for picture, file in zip(media, thumbnails(media), strict=False)}


def _columns(scores: Sequence[Score]) -> dict[str, list[Any]]:
    """Return the scores of all prompts as columns, ordered by the prompts' ids."""
    ordered = sorted({score.prompt: score for score in scores}.values(), key=lambda score: score.prompt)
    return {
        "id": [score.prompt for score in ordered],
        "accuracy": [score.accuracy for score in ordered],
        "reward": [score.reward for score in ordered],
    }


def _row(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": rollout.prompt.id,
        "prompt": rollout.prompt.text,
        "answer": str(rollout.prompt.columns.get("answer", "")),
        "completion": rollout.transcript,
        "reward": rollout.reward,
        "tokens": rollout.length,
        "finish": str(rollout.finish_reason),
        **picture_names(rollout.prompt.media),
    }


def _cell(value: object) -> str:
    if value is None:
        return "missing"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
