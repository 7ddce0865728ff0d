"""Run folders: their location, names and loggers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.commands.fit.defaults import DEFAULT_ROOT
from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import Resumption
from gspo_lightning.training.callbacks.run_logger import RunLogger


def run_name(config: Any) -> str:
    """Return the name that groups runs: the stem of the first config file, else "run"."""
    files = config.get("config") or []
    return Path(str(files[0])).stem if files else "run"


def root_of(config: Any) -> Path:
    """Return the folder of all runs."""
    return Path(config.trainer.default_root_dir or DEFAULT_ROOT)


def runs_of(config: Any) -> Path:
    """Return the folder of this config's runs; each is a ``version_N`` in it."""
    return root_of(config) / run_name(config)


def check_writable(folder: Path) -> None:
    """Check, before the model is loaded, that the run folder can be created; leaves nothing behind."""
    folders = (folder.absolute(), *folder.absolute().parents)
    existing = next(path for path in folders if path.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".gspo-", dir=existing))
    except OSError as error:
        problem = f"{str(folder)!r} cannot be written: {error.strerror}: {existing}"
        raise UserError("trainer.default_root_dir", problem, fix="give another folder") from error


def loggers_of(chosen: Any, config: Any, fit: bool, resumption: Resumption) -> Any:
    """Return the run folder's TensorBoard logger, then the user's loggers; False if there are none."""
    if chosen is False:
        return False
    if chosen in (None, True):
        configured = []
    else:
        configured = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    if any(isinstance(logger, TensorBoardLogger) for logger in configured):
        return sorted(configured, key=lambda logger: not isinstance(logger, TensorBoardLogger))
    if not fit:
        return configured or False
    run = resumption.run
    if run is None:
        run_logger = RunLogger(
            config.trainer.default_root_dir or DEFAULT_ROOT,
            name=run_name(config),
            version=None,
            default_hp_metric=False,
            changes=resumption.changed,
        )
    else:  # continue in the folder of the run
        run_logger = RunLogger(
            str(run.parent.parent),
            name=run.parent.name,
            version=run.name,
            default_hp_metric=False,
            purge_step=resumption.first_step,
            changes=resumption.changed,
        )
    return [run_logger, *configured]
