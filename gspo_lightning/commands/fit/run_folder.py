"""Run folders: their location and names."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from gspo_lightning.commands.fit.defaults import DEFAULT_ROOT
from gspo_lightning.errors import UserError

__all__ = ["check_writable", "root_of", "run_name", "runs_of"]


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
