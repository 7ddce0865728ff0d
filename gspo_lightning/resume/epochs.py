"""Lightning's count of epochs (here: iterations) in a checkpoint from the middle of one."""

from __future__ import annotations

from typing import Any

__all__ = ["reopen_epoch"]


def reopen_epoch(checkpoint: dict[str, Any]) -> None:
    """Call the last epoch begun but not completed, as in a checkpoint that an interrupt leaves.

    A run that ends inside an iteration (``max_steps``, ``max_time``) has completed the epoch in Lightning's eyes; its
    resume would run one iteration fewer.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    if progress["current"]["completed"] < progress["current"]["ready"]:
        return
    for count in progress.values():
        count["completed"] -= 1
        count["processed"] -= 1
    checkpoint["epoch"] -= 1
