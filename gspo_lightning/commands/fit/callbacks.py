"""Callbacks of a training command: the ones in the config and the defaults of every run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ProgressBar

from gspo_lightning.callbacks import NewOptimizerSettings, PredictionWriter, RunProgress, adapted, default_callbacks
from gspo_lightning.callbacks.ranks import WatchRanks
from gspo_lightning.resume import Resumption

__all__ = ["callbacks_of", "listed"]


def callbacks_of(
    chosen: Mapping[str, Any], command: str, run: Path, resumption: Resumption, evaluates: bool
) -> list[Callback]:
    """Return the user's callbacks, then the default ones whose class the user has not configured.

    Args:
        chosen: trainer settings, with instantiated callbacks.
        command: fit, validate, test or predict.
        run: folder for predictions.
        resumption: resume state of the run.
        evaluates: True if there are held-out prompts.
    """
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
