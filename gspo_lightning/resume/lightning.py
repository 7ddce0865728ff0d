"""Lightning's part of a checkpoint: its count of epochs is corrected, and its loggers are flushed before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gspo_lightning.resume.files import sync_path

WRITTEN = ("events.*", "*.jsonl")
"""Patterns of files that grow with every update, in a logger's folder."""


def reopen_epoch(checkpoint: dict[str, Any]) -> None:
    """Mark the last epoch as begun but not completed, as in a checkpoint that an interrupt leaves.

    When a run ends inside an iteration (``max_steps``, ``max_time``), Lightning counts the epoch as completed; its
    resume would run one iteration fewer.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    if progress["current"]["completed"] < progress["current"]["ready"]:
        return
    for count in progress.values():
        count["completed"] -= 1
        count["processed"] -= 1
    checkpoint["epoch"] -= 1


def close_epoch(checkpoint: dict[str, Any]) -> None:
    """Mark a finished iteration as complete, as in a checkpoint that is written when its epoch has ended.

    The checkpoint of an iteration is written within Lightning's epoch, after its last update or its evaluation. A
    resume from there begins the next epoch without counting it as begun; the resume after that one would take its
    checkpoint for complete and train on an iteration too many.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop")
    if loop is None or not loop["epoch_loop.batch_progress"]["is_last_batch"]:
        return
    epochs = loop["epoch_progress"]
    batches = loop["epoch_loop.batch_progress"]
    for count in (epochs["total"], epochs["current"]):
        count.update(dict.fromkeys(count, count["ready"]))
    batches["total"]["completed"] = batches["total"]["processed"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    batches["is_last_batch"] = False
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]
    checkpoint["epoch"] = epochs["current"]["completed"]


def flush(loggers: Iterable[Any]) -> None:
    """Flush Lightning loggers, and sync the files of those that write into the run folder.

    Raises:
        OSError: the disk is full.
    """
    for logger in loggers:
        experiment = logger.experiment
        if not hasattr(experiment, "flush"):
            continue
        experiment.flush()
        folder = getattr(logger, "log_dir", None)
        if not folder:
            continue
        for pattern in WRITTEN:
            for file in Path(folder).glob(pattern):
                sync_path(file)
