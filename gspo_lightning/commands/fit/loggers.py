"""Loggers of a run: the one of its folder and the ones in the config."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.callbacks.run_logger import RunLogger
from gspo_lightning.commands.fit.defaults import DEFAULT_ROOT
from gspo_lightning.commands.fit.run_folder import run_name
from gspo_lightning.resume import Resumption

__all__ = ["loggers_of"]


def loggers_of(chosen: Any, config: Any, fit: bool, resumption: Resumption) -> Any:
    """Return the run folder's TensorBoard logger, then the user's loggers; False if there are none."""
    if chosen is False:
        return False
    theirs = [] if chosen in (None, True) else list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    if any(isinstance(logger, TensorBoardLogger) for logger in theirs):
        return sorted(theirs, key=lambda logger: not isinstance(logger, TensorBoardLogger))
    if not fit:
        return theirs or False
    root, name, version = config.trainer.default_root_dir or DEFAULT_ROOT, run_name(config), None
    if (run := resumption.run) is not None:  # continue in the folder of the run
        root, name, version = str(run.parent.parent), run.parent.name, run.name
    purge = resumption.first_step if run is not None else None
    own = RunLogger(root, name=name, version=version, default_hp_metric=False, purge_step=purge)
    return [own, *theirs]
