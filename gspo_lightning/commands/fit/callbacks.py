"""Callbacks of a training command: the ones in the config and the defaults of every run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.resume import Resumption
from gspo_lightning.training.callbacks import (
    NewOptimizerSettings,
    PredictionWriter,
    RunProgress,
    adapted,
    default_callbacks,
)
from gspo_lightning.training.callbacks.ranks import WatchRanks

_OF_THIS_START = ("ckpt_path", "allow_changed_config", "weights_only")
"""Settings of one start of a run, not of the run itself; a resume changes them."""


def callbacks_of(
    chosen: Mapping[str, Any], command: str, run: Path, resumption: Resumption, evaluates: bool
) -> list[Callback]:
    """Return the user's callbacks, then the default ones whose class the user has not configured."""
    fit, given = command == "fit", listed(chosen.get("callbacks"))
    bar = chosen.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in given)
    if fit:
        own = default_callbacks(progress_bar=bar, checkpoints=chosen.get("enable_checkpointing") is not False)
        if resumption.optimizer_changed:
            own.insert(1, NewOptimizerSettings())
    else:
        own = [
            WatchRanks(),
            *([PredictionWriter(run)] if command == "predict" else []),
            *([RunProgress()] if bar else []),
        ]
    theirs = {type(c) for c in given}
    return [*adapted(given, evaluates=evaluates), *(c for c in own if type(c) not in theirs)]


def listed(chosen: Any) -> list[Any]:
    """Return one object, several or None as a list."""
    return list(chosen) if isinstance(chosen, list | tuple) else [] if chosen is None else [chosen]


class SavedConfig(SaveConfigCallback):
    """Callback that writes ``config.yaml`` and logs its settings to Weights & Biases, MLflow and CSV loggers."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Log the settings once, on rank 0; not to TensorBoard, whose folder holds ``config.yaml``."""
        loggers = [logger for logger in trainer.loggers if not isinstance(logger, TensorBoardLogger)]
        if not loggers:
            return
        written = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        settings = {name: value for name, value in written.items() if name not in _OF_THIS_START}
        for logger in loggers:
            logger.log_hyperparams(settings)
