"""Correct Lightning's epoch count (here: iterations) in checkpoints from the middle or the end of an iteration."""

from __future__ import annotations

from typing import Any

__all__ = ["close_epoch", "reopen_epoch"]


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
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    for count in (epochs["total"], epochs["current"]):
        count.update(dict.fromkeys(count, count["ready"]))
    batches["total"]["completed"] = batches["total"]["processed"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    batches["is_last_batch"] = False
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]
    checkpoint["epoch"] = epochs["current"]["completed"]
