"""Progress bar over the updates of a run."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

__all__ = ["UpdateBar"]


class UpdateBar(ProgressBar):
    """Progress bar of updates, shown on the first rank only; a subclass opens it and sets its text."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None
        self._enabled = True

    def disable(self) -> None:
        """Hide the bar; Lightning calls this on every rank but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def open(self, trainer: Trainer, total: int | None, what: str) -> None:
        """Show the bar, at the position of a resumed run.

        Args:
            trainer: the run's trainer.
            total: number of updates; None if unknown.
            what: text before the bar.
        """
        self._bar = tqdm(
            total=total, initial=trainer.global_step, desc=what, unit="update", disable=not self._enabled,
            dynamic_ncols=True, mininterval=0.2 if sys.stderr.isatty() else 5.0,
        )  # fmt: skip

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the bar before the error is printed."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
