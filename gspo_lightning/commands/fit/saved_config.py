"""The resolved config: a file in the run folder, and the hyperparameters of every logger that a config names."""

from __future__ import annotations

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

__all__ = ["SavedConfig"]

_OF_THIS_START = ("ckpt_path", "allow_changed_config", "weights_only")
"""How a run was started, which is another matter than what it is: a resume differs in it."""


class SavedConfig(SaveConfigCallback):
    """Writes ``config.yaml``, and tells Weights & Biases, MLflow and CSV files the same settings."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """On rank 0, once. TensorBoard has the file beside its own."""
        loggers = [logger for logger in trainer.loggers if not isinstance(logger, TensorBoardLogger)]
        if not loggers:
            return
        written = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        settings = {name: value for name, value in written.items() if name not in _OF_THIS_START}
        for logger in loggers:
            logger.log_hyperparams(settings)
