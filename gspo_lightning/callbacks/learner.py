"""Cast the module that a callback receives."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from gspo_lightning.errors import UserError
from gspo_lightning.training.module import GSPOModule

__all__ = ["learner"]


def learner(pl_module: LightningModule) -> GSPOModule:
    """Return the module that a callback was called with, as a :class:`GSPOModule`.

    Raises:
        UserError: another LightningModule is trained.
    """
    if not isinstance(pl_module, GSPOModule):
        name = type(pl_module).__name__
        raise UserError("trainer.callbacks", f"one of them works with a GSPOModule, but {name} is trained")
    return pl_module
