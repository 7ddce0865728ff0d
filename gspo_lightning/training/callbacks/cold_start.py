"""Log the loss curve of the cold start, before the first update."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.training.callbacks.folder import gspo_module
from gspo_lightning.training.callbacks.run_logger import scalars_of
from gspo_lightning.training.supervised import read_curve

_LOSS = "cold_start/loss"
_HELD_OUT_LOSS = "cold_start/held_out_loss"


class ColdStartCurve(Callback):
    """Logs ``cold_start/loss`` and ``cold_start/held_out_loss`` to every logger, whichever run made the cold start.

    Steps count up to -1, the last one before the first update. A resumed run drops what was logged after its
    checkpoint, so negative steps are kept.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the curve once per run folder, on the first rank."""
        module = gspo_module(pl_module)
        if module.cold_start is None or module.weights_from is not None or not trainer.is_global_zero:
            return
        scalars = scalars_of(trainer.loggers)
        if scalars is not None and _LOSS in scalars.series():  # killed before its first checkpoint, and begun again
            return
        curve = read_curve(module.cold_start.made(module.start()))
        for point in curve:
            losses = {_LOSS: point.loss}
            if point.held_out_loss is not None:
                losses[_HELD_OUT_LOSS] = point.held_out_loss
            for logger in trainer.loggers:
                logger.log_metrics(losses, step=point.step - curve[-1].step - 1)
