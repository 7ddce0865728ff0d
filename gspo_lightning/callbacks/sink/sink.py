"""One place for what is more than a number: a callback writes once, every logger gets what it can show.

===================  ============================  ==========================  =====================================
logger               histograms                    texts and tables            pictures, layout of charts
===================  ============================  ==========================  =====================================
TensorBoardLogger    bins as they were counted     Markdown                    both
WandbLogger          ``wandb.Histogram``           tables                      pictures
MLFlowLogger         left out                      artifacts, one per step     pictures, as artifacts
CSVLogger, others    left out                      left out                    left out
===================  ============================  ==========================  =====================================

No number is lost where histograms are left out: numbers go to every logger from where they are measured, percentiles
and extremes of what the histograms show among them (docs/metrics.md).
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
"""Loggers that can show more than numbers."""


class Sink(Outlet):
    """Writes to all loggers of a run.

    Args:
        loggers: of the process that writes; none in the others.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._outlets = [outlet(logger) for logger in loggers for kind, outlet in OUTLETS if isinstance(logger, kind)]

    @classmethod
    def of(cls, trainer: Trainer) -> Sink:
        """That of the first rank; one without loggers on the others."""
        return cls(trainer.loggers if trainer.is_global_zero else ())

    def values(self, tag: str, values: Floats, step: int) -> None:
        """A histogram of those of the values [N] that are not NaN; nothing where there are none."""
        if (known := values[~np.isnan(values)]).size:
            for outlet in self._outlets:
                outlet.values(tag, known, step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """A histogram that was counted already, [B] of bins with edges [B + 1]; nothing where all are 0."""
        if counts.any():
            for outlet in self._outlets:
                outlet.counts(tag, counts, edges, step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """A page of Markdown."""
        for outlet in self._outlets:
            outlet.text(tag, markdown, step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Rows of texts; those of the columns ``code`` are shown as they are, never rendered."""
        for outlet in self._outlets:
            outlet.table(tag, columns, rows, step, code)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """A PNG file."""
        for outlet in self._outlets:
            outlet.picture(tag, path, step)

    def sheet(self, tag: str, answers: Sequence[Answer], step: int) -> None:
        """Answers with the pictures of their prompts beside them, as one picture; nothing where no prompt has any."""
        if self._outlets and any(answer.pictures for answer in answers):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"step-{step:08d}.png"
                draw_sheet(answers, path)
                self.picture(tag, path, step)

    def layout(self, charts: Charts) -> None:
        """How numbers are arranged."""
        for outlet in self._outlets:
            outlet.layout(charts)
