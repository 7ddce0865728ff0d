"""Save the resolved config in the run folder and as hyperparameters of the configured loggers."""

from __future__ import annotations

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

__all__ = ["SavedConfig"]

_OF_THIS_START = ("ckpt_path", "allow_changed_config", "weights_only")
"""Settings of one start of a run, not of the run itself; a resume changes them."""


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
