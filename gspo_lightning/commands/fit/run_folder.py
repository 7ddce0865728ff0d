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
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".gspo-", dir=there))
    except OSError as error:
        why = f"{str(folder)!r} cannot be written: {error.strerror}: {there}"
        raise UserError("trainer.default_root_dir", why, fix="give another folder") from error


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
    own = RunLogger(
        root, name=name, version=version, default_hp_metric=False, purge_step=purge, changes=resumption.changed
    )
    return [own, *theirs]
