"""A callback that stops a rank (SIGSTOP) in a collective of context or expert parallelism, before it takes part."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

COLLECTIVES = (
    "all_to_all_single", "all_gather_object", "all_gather", "all_reduce", "broadcast_object_list", "broadcast",
    "all_gather_into_tensor", "reduce_scatter_tensor",
)  # fmt: skip


class Stopping(Callback):
    """Lists the places in the package that call collectives after the first update, or stops rank 1 in one of them.

    Args:
        listed: the file to which rank 0 writes the places, a line each; empty: none.
        place: ``file.py:function collective``, where rank 1 stops; empty: nowhere.
    """

    def __init__(self, listed: str = "", place: str = "") -> None:
        self.listed, self.place = listed, place
        self._rank, self._armed = 0, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rank = trainer.global_rank
        for name in COLLECTIVES:
            setattr(dist, name, self._wrapped(name, getattr(dist, name)))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._armed = True

    def _wrapped(self, name: str, original: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            frame = sys._getframe(1)
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name} {name}"
            if self._armed and "gspo_lightning" in frame.f_code.co_filename:
                if self._rank == 0 and self.listed:
                    with open(self.listed, "a") as file:
                        file.write(f"{place}\n")
                if self._rank == 1 and place == self.place:
                    print(f"stopped: {os.getpid()} in {place}", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **more)

        return call
