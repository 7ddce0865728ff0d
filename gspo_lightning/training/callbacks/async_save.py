"""Write checkpoints in a thread while training goes on, from a copy in CPU memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from gspo_lightning.core.distributed import another_group, through


class AsyncSave:
    """Writes one checkpoint at a time in a thread. Making one is a collective.

    The copy is torch's (``torch.distributed.checkpoint.staging``): whole on return, of this rank's shards, and kept for
    the next checkpoint, pinned beside a GPU. Collectives of the thread go through a group of its own.
    """

    def __init__(self) -> None:
        self._group = another_group()
        on_gpu = torch.cuda.is_available()
        options = StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=False,
            use_async_staging=False,  # the weights change with the next update: the copy must be whole on return
            use_non_blocking_copy=on_gpu,
        )
        self._stager = DefaultStager(options)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, checkpoint: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
        """Copy a checkpoint, and write the copy after the one that is being written.

        Args:
            checkpoint: tensors, DTensors and primitives.
            write: is called with the copy, in the thread; on all ranks or on the first one.
        """
        self.wait()
        copy = cast("dict[str, Any]", self._stager.stage(checkpoint))  # a future with another option only

        def work() -> None:
            try:
                with through(self._group):
                    write(copy)
            except BaseException as error:  # raised by wait()
                self._error = error

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)  # a hung rank must not keep others
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the checkpoint is written; return False if it is not after ``seconds``.

        Raises:
            BaseException: what writing it raised, once.
        """
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
        self._thread = None
        error = self._error
        self._error = None
        if error is not None:
            raise error
        return True
