"""``gspo predict``: responses with everything that was measured about them, one JSON object a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from gspo_lightning.callbacks.folder import run_folder
from gspo_lightning.distributed import rank_and_world
from gspo_lightning.rollouts.records import write_records

__all__ = ["PredictionWriter"]


class PredictionWriter(BasePredictionWriter):
    """Writes ``predictions.jsonl`` (``predictions-rank1.jsonl`` ... on further ranks) to the run folder."""

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write all responses of this rank."""
        rank = rank_and_world()[0]
        path = run_folder(trainer) / ("predictions.jsonl" if rank == 0 else f"predictions-rank{rank}.jsonl")
        write_records(path, [row for batch in predictions for row in batch])
        if trainer.is_global_zero:
            print(f"predictions: {path}")
