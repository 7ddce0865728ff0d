"""Apply changed optimizer settings after a resume."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["NewOptimizerSettings"]


class NewOptimizerSettings(Callback):
    """Replaces the optimizer settings of the checkpoint by this run's; moments and step counts stay."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Apply the settings once, after the checkpoint was loaded."""
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.update(optimizer.defaults)  # from this run's config; loading leaves them
                if "initial_lr" in group:
                    group["initial_lr"] = optimizer.defaults["lr"]
        for config in trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):  # ReduceLROnPlateau uses the current rate
                config.scheduler.base_lrs = [group["initial_lr"] for group in config.scheduler.optimizer.param_groups]
