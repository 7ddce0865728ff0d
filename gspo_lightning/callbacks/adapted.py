"""Adapt Lightning's callbacks to iterations and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, WeightAveraging

from gspo_lightning.callbacks.averaging import AveragedWeights
from gspo_lightning.errors import UserError

__all__ = ["adapted"]


def adapted(given: Sequence[Callback], *, evaluates: bool) -> list[Callback]:
    """Return the callbacks that a user chose, adapted, in order.

    ``WeightAveraging`` averages the trained weights. ``EarlyStopping`` and ``ModelCheckpoint`` check when their metric
    is new: after an evaluation for ``val/`` metrics, after an iteration for all others. Lightning's own choice follows
    ``check_val_every_n_epoch``, and may be never.

    Args:
        given: callbacks in the form that Lightning takes.
        evaluates: True if there are held-out prompts.

    Raises:
        UserError: there are two averages.
    """
    if len(averages := [type(c).__name__ for c in given if isinstance(c, WeightAveraging)]) > 1:
        raise UserError("trainer.callbacks", f"{' and '.join(averages)}: a run keeps one average of its weights")
    for callback in given:
        of_updates = not str(getattr(callback, "monitor", None)).startswith("val/")
        if isinstance(callback, EarlyStopping) and callback._check_on_train_epoch_end is None:
            callback._check_on_train_epoch_end = of_updates
        elif isinstance(callback, ModelCheckpoint) and callback._save_on_train_epoch_end is None and of_updates:
            callback._save_on_train_epoch_end = True if callback.monitor is not None or not evaluates else None
    return [AveragedWeights(c) if isinstance(c, WeightAveraging) else c for c in given]
