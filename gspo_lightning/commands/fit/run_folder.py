"""Where a run writes, and what its folder is called."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_lightning.errors import UserError

if TYPE_CHECKING:
    pass


__all__ = ["DEFAULT_ROOT", "check_writable", "run_name"]

DEFAULT_ROOT = "runs"


def run_name(config: Any) -> str:
    """Runs are grouped under the stem of the first config file."""
    files = config.get("config") or []
    return Path(str(files[0])).stem if files else "run"


def check_writable(root: Path) -> None:
    """A folder can be made where the run writes; found before the model is loaded, and nothing stays behind."""
    there = next(p for p in (root.absolute(), *root.absolute().parents) if p.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".gspo-", dir=there))
    except OSError as error:
        why = f"{str(root)!r} cannot be written: {error.strerror}: {there}"
        raise UserError("trainer.default_root_dir", why, fix="give another folder") from error
