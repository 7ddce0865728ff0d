"""Flush loggers before writing a checkpoint, so that the disk holds all that the checkpoint has seen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["flush"]

WRITTEN = ("events.*", "*.jsonl")
"""Patterns of files that grow with every update, in a logger's folder."""


def flush(loggers: Iterable[Any]) -> None:
    """Flush Lightning loggers, and sync the files of those that write into the run folder.

    Raises:
        OSError: the disk is full.
    """
    for logger in loggers:
        if not hasattr(experiment := logger.experiment, "flush"):
            continue
        experiment.flush()
        folder = getattr(logger, "log_dir", None)
        for file in (file for pattern in WRITTEN for file in Path(folder).glob(pattern)) if folder else ():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
