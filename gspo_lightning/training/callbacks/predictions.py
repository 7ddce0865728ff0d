"""Write the responses of ``gspo predict`` with all measurements, one JSON object per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from gspo_lightning.core.distributed import all_sum, rank_and_world
from gspo_lightning.core.escape import say
from gspo_lightning.rollouts.recording.records import write_records
from gspo_lightning.training.callbacks.folder import fresh_folder


class PredictionWriter(Callback):
    """Writes ``predict/<time>/predictions.jsonl`` (``predictions-rank1.jsonl`` ... on further ranks).

    Prints the number of responses and their mean reward. It is not Lightning's ``BasePredictionWriter``: that one asks
    for sample indices, which prompts do not have.

    Args:
        run: folder of the run whose policy answers.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._rows: list[dict[str, Any]] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the responses of a batch."""
        self._rows += outputs

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write all responses of this rank, and print the mean reward over all ranks."""
        rows = self._rows
        self._rows = []
        name = str(fresh_folder(self.run / "predict")) if trainer.is_global_zero else ""
        folder = Path(str(trainer.strategy.broadcast(name)))
        rank, _ = rank_and_world()
        path = folder / ("predictions.jsonl" if rank == 0 else f"predictions-rank{rank}.jsonl")
        write_records(path, rows)
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        counts = torch.tensor([sum(rewards), len(rewards), len(rows)], dtype=torch.float64, device=pl_module.device)
        total, scored, responses = (float(value) for value in all_sum(counts))
        if trainer.is_global_zero:
            missing = f" ({responses - scored:.0f} without a reward)" if scored < responses else ""
            mean = f"mean reward {total / scored:.4g}" if scored else "no reward"
            say(f"{responses:.0f} responses, {mean}{missing}\npredictions: {path}")
