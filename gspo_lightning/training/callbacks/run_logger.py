"""Logger of a run folder: all numbers in a compact file, a thinned copy in TensorBoard event files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.report.read import read_events
from gspo_lightning.report.resumes import note_resume
from gspo_lightning.report.run import Run
from gspo_lightning.report.scalars import Scalars

log = logging.getLogger(__name__)
FULL_UPDATES = 2_000
"""Updates that event files hold in full; TensorBoard draws 1,000 points of a curve."""
THIN_ITERATIONS = 10
"""Afterwards event files hold one iteration in so many, whole: ratios are a saw-tooth over its mini-batches."""


class RunLogger(TensorBoardLogger):
    """TensorBoard logger that also keeps the :class:`gspo_lightning.report.scalars.Scalars` of the run.

    Args:
        purge_step: step from which a resumed run logs again; later entries are dropped. None in a new folder.
        changes: settings of a resumed run that differ from its checkpoint's, for ``resumes.jsonl``.
        arguments: of Lightning's logger.
    """

    def __init__(
        self, *arguments: Any, purge_step: int | None = None, changes: Sequence[str] = (), **more: Any
    ) -> None:
        super().__init__(*arguments, purge_step=purge_step, **more)
        self._first = purge_step
        self._changes = changes
        self._scalars: Scalars | None = None

    @property
    def scalars(self) -> Scalars:
        """All numbers of the run so far, including those from before a resume."""
        if self._scalars is None:
            folder = Path(self.log_dir)
            scalars = Scalars.read(folder)
            if self._first is not None:
                _complete(scalars, folder, self._first)
                scalars.cut(self._first)
                note_resume(folder, self._first - 1, self._changes)
            self._scalars = scalars
        return self._scalars

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log to the compact file, and to the event file unless thinned out; evaluations are always kept."""
        values = {tag: float(value) for tag, value in metrics.items() if _is_number(value)}
        scalars = self.scalars  # read before this process makes its event file
        if step is not None and values:
            scalars.add(step, values)
        iteration = values.get("data/iteration")
        if step is None or step <= FULL_UPDATES or iteration is None or iteration % THIN_ITERATIONS == 0:
            super().log_metrics(dict(metrics), step)


def _complete(scalars: Scalars, folder: Path, first: int) -> None:
    """Take what the file lacks from event files, and say what it lacked: it was cut, damaged or deleted."""
    had_no_file = not len(scalars)  # a run of older code
    damaged = scalars.damaged
    missing = scalars.missing(first)
    if not missing and not damaged:
        return
    run = Run(folder)
    read_events(run, "gspo fit")
    scalars.take(run.scalars, run.started or 0.0)
    still_missing = scalars.missing(first)
    if still_missing or damaged or not had_no_file:
        lines = f"; {damaged} damaged lines are dropped" if damaged else ""
        log.warning(
            "%s lacked the numbers of %d updates before %d: it was cut or damaged%s. Those of %d are taken from the "
            "event files, those of %d are gone; the weights are not concerned",
            scalars.file, missing, first, lines, missing - still_missing, still_missing,
        )  # fmt: skip


def scalars_of(loggers: Iterable[Logger]) -> Scalars | None:
    """Return the scalars of the run folder's logger; None without such a logger."""
    return next((logger.scalars for logger in loggers if isinstance(logger, RunLogger)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
