"""Write histograms, texts, tables and pictures to all loggers, each in the form that it supports.

===================  ============================  ==========================  =====================================
logger               histograms                    texts and tables            pictures, layout of charts
===================  ============================  ==========================  =====================================
TensorBoardLogger    bins as they were counted     Markdown                    both
WandbLogger          ``wandb.Histogram``           tables                      pictures
MLFlowLogger         left out                      artifacts, one per step     pictures, as artifacts
TrackioLogger        ``trackio.Histogram``         Markdown                    pictures
CSVLogger, others    left out                      left out                    left out
===================  ============================  ==========================  =====================================

Loggers without histograms lose no number: every logger gets all scalars where they are measured, including percentiles
and extremes of what the histograms show (docs/metrics.md). wandb and mlflow are imported by Lightning's loggers for
them, trackio by :class:`TrackioLogger`, never here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from numpy.typing import NDArray

from gspo_lightning.core.escape import cell
from gspo_lightning.core.escape import code as code_of
from gspo_lightning.training.callbacks.sheet import Answer, draw_table
from gspo_lightning.training.callbacks.trackio_logger import TrackioLogger

Charts = Mapping[str, Mapping[str, Sequence[str | list[str]]]]
"""Category -> chart -> its tags, in the form that ``SummaryWriter.add_custom_scalars`` takes."""
Floats = NDArray[np.float64]
Rows = Sequence[Sequence[str]]


class LoggerAdapter:
    """Base class of logger adapters; shows nothing, and a subclass overrides what its logger supports.

    ``step`` is the number of updates so far.
    """

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram of values [N], N > 0, none of them NaN."""

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write a histogram from counts [B], not all 0, of bins with edges [B + 1]."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write a page of Markdown."""

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write rows of texts under column names; columns in ``code`` are shown verbatim."""

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Write a PNG file."""

    def layout(self, charts: Charts) -> None:
        """Set the layout of the charts."""


class TensorBoard(LoggerAdapter):
    """Adapter for TensorBoard, which supports all kinds."""

    def __init__(self, logger: TensorBoardLogger) -> None:
        self._writer: Any = logger.experiment

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram with TensorBoard's own bins."""
        self._writer.add_histogram(tag, values, step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write the bins unchanged."""
        write_counts(self._writer, tag, counts, edges, step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write rendered Markdown to the tab "Text"."""
        text = markdown.encode(errors="backslashreplace").decode()  # records may hold half a surrogate pair
        self._writer.add_text(tag, text, step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write a rendered table to the tab "Text"."""
        self.text(tag, markdown_table(columns, rows, code), step)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Write to the tab "Images"."""
        pixels = import_module("matplotlib.image").imread(path)  # [H, W, 3 or 4] float32 in [0, 1]
        self._writer.add_image(tag, pixels[..., :3], step, dataformats="HWC")

    def layout(self, charts: Charts) -> None:
        """Arrange the tab "Custom Scalars"."""
        self._writer.add_custom_scalars(charts)


class Wandb(LoggerAdapter):
    """Adapter for Weights & Biases: all but the layout, over the x axis of the numbers (``trainer/global_step``)."""

    def __init__(self, logger: WandbLogger) -> None:
        self._logger: Any = logger

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram with wandb's own 64 bins."""
        self._logger.log_metrics({tag: import_module("wandb").Histogram(values)}, step=step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write the bins unchanged; wandb takes up to 512."""
        self._logger.log_metrics({tag: import_module("wandb").Histogram(np_histogram=(counts, edges))}, step=step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write a table with one cell."""
        self.table(tag, ["text"], [[markdown]], step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write a wandb table."""
        self._logger.log_text(tag, columns=list(columns), data=[list(row) for row in rows], step=step)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Upload the picture."""
        self._logger.log_image(tag, [str(path)], step=step)


class MLFlow(LoggerAdapter):
    """Adapter for MLflow: texts, tables and pictures as artifacts, such as ``samples/step-00000004.md``.

    MLflow has no histograms and no layout.
    """

    def __init__(self, logger: MLFlowLogger) -> None:
        self._logger: Any = logger

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write one file per step."""
        self._logger.experiment.log_text(self._logger.run_id, markdown, f"{tag}/step-{step:08d}.md")

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write the table as Markdown: an MLflow table needs pandas."""
        self.text(tag, markdown_table(columns, rows, code), step)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Write the file under its own name in the folder ``tag``."""
        self._logger.experiment.log_artifact(self._logger.run_id, str(path), tag)


class Trackio(LoggerAdapter):
    """Adapter for Trackio: all but the layout."""

    def __init__(self, logger: TrackioLogger) -> None:
        self._logger = logger

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram with Trackio's own 64 bins."""
        self._logger.log_metrics({tag: import_module("trackio").Histogram(values)}, step=step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write the bins unchanged."""
        self._logger.log_metrics({tag: import_module("trackio").Histogram(np_histogram=(counts, edges))}, step=step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write rendered Markdown."""
        self._logger.log_metrics({tag: import_module("trackio").Markdown(markdown)}, step=step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write a rendered table; a table of Trackio would render what a model wrote."""
        self.text(tag, markdown_table(columns, rows, code), step)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Copy the picture into the project."""
        self._logger.log_metrics({tag: import_module("trackio").Image(str(path))}, step=step)


def write_counts(writer: Any, tag: str, counts: Floats, edges: Floats, step: int) -> None:
    """Write counts [B] of bins with edges [B + 1] as a TensorBoard histogram.

    TensorBoard stores the upper edge of a bin only. The sum and sum of squares that it keeps beside the bins are
    computed from bin centres (from the upper edge for the lowest bin, which is open).
    """
    limits = edges[1:]
    centres = np.append(limits[:1], (limits[1:] + limits[:-1]) / 2)
    present = np.nonzero(counts)[0]
    writer.add_histogram_raw(
        tag,
        min=float(limits[max(present[0] - 1, 0)]),
        max=float(limits[present[-1]]),
        num=int(counts.sum()),
        sum=float((counts * centres).sum()),
        sum_squares=float((counts * centres**2).sum()),
        bucket_limits=limits.tolist(),
        bucket_counts=counts.tolist(),
        global_step=step,
    )


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], code: Collection[str] = ()) -> str:
    r"""Return a Markdown table; cells of the columns ``code`` are put in backticks, and cut if long.

    >>> print(markdown_table(["what", "said"], [["a|b", "1 | 2"]], code={"said"}))
    | what | said |
    |---|---|
    | a\|b | `1 \| 2` |
    """
    lines = [f"| {' | '.join(map(cell, columns))} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [code_of(text, 400) if name in code else cell(text) for name, text in zip(columns, row, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


LOGGER_ADAPTERS: tuple[tuple[type[Logger], Callable[[Any], LoggerAdapter]], ...] = (
    (TensorBoardLogger, TensorBoard),
    (WandbLogger, Wandb),
    (MLFlowLogger, MLFlow),
    (TrackioLogger, Trackio),
)
"""Loggers that can show more than numbers, and their outlets."""


class Sink(LoggerAdapter):
    """Writes to all loggers of a run.

    Args:
        loggers: those of the process that writes; empty in the others.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._adapters: list[LoggerAdapter] = []
        for logger in loggers:
            self._adapters += [adapter(logger) for kind, adapter in LOGGER_ADAPTERS if isinstance(logger, kind)]

    @classmethod
    def of(cls, trainer: Trainer) -> Sink:
        """Return the sink of the trainer's loggers on the first rank, and an empty one on the others."""
        return cls(trainer.loggers if trainer.is_global_zero else ())

    def values(self, tag: str, values: Floats, step: int) -> None:
        """Write a histogram of the values [N] that are not NaN; write nothing if all are NaN."""
        measured = values[~np.isnan(values)]
        if measured.size:
            for adapter in self._adapters:
                adapter.values(tag, measured, step)

    def counts(self, tag: str, counts: Floats, edges: Floats, step: int) -> None:
        """Write a histogram from counts [B] and bin edges [B + 1]; write nothing if all counts are 0."""
        if counts.any():
            for adapter in self._adapters:
                adapter.counts(tag, counts, edges, step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write a page of Markdown."""
        for adapter in self._adapters:
            adapter.text(tag, markdown, step)

    def table(self, tag: str, columns: Sequence[str], rows: Rows, step: int, code: Collection[str] = ()) -> None:
        """Write rows of texts; columns in ``code`` are shown verbatim, never rendered."""
        for adapter in self._adapters:
            adapter.table(tag, columns, rows, step, code)

    def picture(self, tag: str, path: Path, step: int) -> None:
        """Write a PNG file."""
        for adapter in self._adapters:
            adapter.picture(tag, path, step)

    def sheet(self, tag: str, answers: Sequence[Answer], step: int) -> None:
        """Write answers beside the pictures of their prompts, as one picture; nothing if no prompt has pictures."""
        if self._adapters and any(answer.pictures for answer in answers):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"step-{step:08d}.png"
                draw_table(answers, path)
                self.picture(tag, path, step)

    def layout(self, charts: Charts) -> None:
        """Set the layout of the charts."""
        for adapter in self._adapters:
            adapter.layout(charts)
