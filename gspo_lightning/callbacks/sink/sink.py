"""Write histograms, texts, tables and pictures to all loggers, each in the form that it supports.

===================  ============================  ==========================  =====================================
logger               histograms                    texts and tables            pictures, layout of charts
===================  ============================  ==========================  =====================================
TensorBoardLogger    bins as they were counted     Markdown                    both
WandbLogger          ``wandb.Histogram``           tables                      pictures
MLFlowLogger         left out                      artifacts, one per step     pictures, as artifacts
CSVLogger, others    left out                      left out                    left out
===================  ============================  ==========================  =====================================

Loggers without histograms lose no number: every logger gets all scalars where they are measured, including percentiles
and extremes of what the histograms show (docs/metrics.md).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from gspo_lightning.callbacks.sink.outlets import Charts, Floats, MLFlow, Outlet, Rows, TensorBoard, Wandb
from gspo_lightning.callbacks.sink.sheet import Answer, draw_sheet

__all__ = ["Sink"]

OUTLETS: tuple[tuple[type[Logger], Callable[[Any], Outlet]], ...] = (
    (TensorBoardLogger, TensorBoard),
    (WandbLogger, Wandb),
    (MLFlowLogger, MLFlow),
)
"""Loggers that can show more than numbers, and their outlets."""


class Sink(Outlet):
    """Writes to all loggers of a run.

    Args:
        loggers: those of the process that writes; empty in the others.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._outlets = [outlet(logger) for logger in loggers for kind, outlet in OUTLETS if isinstance(logger, kind)]

    @classmethod
    def of(cls, trainer: Trainer) -> Sink:
        """Return the sink of the trainer's loggers on the first rank, and an empty one on the others."""
        return cls(trainer.loggers if trainer.is_global_zero else ())

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram of the values [N] that are not NaN; write nothing if all are NaN."""
        if (known := values[~np.isnan(values)]).size:
            for outlet in self._outlets:
                outlet.values(tag, known, step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write a histogram from counts [B] and bin edges [B + 1]; write nothing if all counts are 0."""
        if counts.any():
            for outlet in self._outlets:
                outlet.counts(tag, counts, edges, step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write a page of Markdown."""
        for outlet in self._outlets:
            outlet.text(tag, markdown, step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write rows of texts; columns in ``code`` are shown verbatim, never rendered."""
        for outlet in self._outlets:
            outlet.table(tag, columns, rows, step, code)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Write a PNG file."""
        for outlet in self._outlets:
            outlet.picture(tag, path, step)

    def sheet(self, tag: str, answers: Sequence[Answer], step: int) -> None:
        """Write answers beside the pictures of their prompts, as one picture; nothing if no prompt has pictures."""
        if self._outlets and any(answer.pictures for answer in answers):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"step-{step:08d}.png"
                draw_sheet(answers, path)
                self.picture(tag, path, step)

    def layout(self, charts: Charts) -> None:
        """Set the layout of the charts."""
        for outlet in self._outlets:
            outlet.layout(charts)
