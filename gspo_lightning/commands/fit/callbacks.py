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
    configured = listed(chosen.get("callbacks"))
    has_bar = any(isinstance(callback, ProgressBar) for callback in configured)
    adds_bar = chosen.get("enable_progress_bar") is not False and not has_bar
    if command == "fit":
        checkpoints = chosen.get("enable_checkpointing") is not False
        defaults = default_callbacks(progress_bar=adds_bar, checkpoints=checkpoints)
        if resumption.optimizer_changed:
            defaults.insert(1, NewOptimizerSettings())
    else:
        defaults = [WatchRanks()]
        if command == "predict":
            defaults.append(PredictionWriter(run))
        if adds_bar:
            defaults.append(RunProgress())
    classes = {type(callback) for callback in configured}
    missing = [callback for callback in defaults if type(callback) not in classes]
    return [*adapted(configured, evaluates=evaluates), *missing]


def listed(chosen: Any) -> list[Any]:
    """Return one object, several or None as a list."""
    if chosen is None:
        return []
    return list(chosen) if isinstance(chosen, list | tuple) else [chosen]


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
