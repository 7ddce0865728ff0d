"""A callback that stops a rank (SIGSTOP) in a collective, before it takes part, without taking that one's place."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed import distributed_c10d

COLLECTIVES = (
    "all_to_all", "all_to_all_single", "all_gather", "all_gather_object", "all_gather_into_tensor", "all_gather_tensor",
    "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "scatter", "scatter_object_list", "barrier", "monitored_barrier", "send", "recv",
)  # fmt: skip
PATIENCE = timedelta(seconds=6)
"""For the other rank, from the moment at which both have started: not for their imports, which take longer."""
HELPERS = "core/distributed.py"
"""Whose functions are one line around a collective: their callers are the places."""


def codes() -> dict[CodeType, str]:
    """The code of every collective of torch -> its name."""
    collectives = [(name, getattr(module, name, None)) for name in COLLECTIVES for module in (dist, functional)]
    return {inspect.unwrap(function).__code__: name for name, function in collectives if function is not None}


class Stopping(Callback):
    """Lists the places that call collectives after the first iteration, or stops rank 1 in one of them.

    Args:
        listed: the file to which rank 0 writes the places, a line each; empty: none.
        place: ``file.py:function collective``, where rank 1 stops; empty: nowhere.
    """

    def __init__(self, listed: str = "", place: str = "") -> None:
        self.listed, self.place = listed, place
        self._rank, self._codes, self._seen = 0, codes(), set[str]()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._rank = trainer.global_rank
        if trainer.global_step != 2:  # after the first checkpoint
            return
        if self.place:
            for group in list(distributed_c10d._world.pg_map):
                distributed_c10d._set_pg_timeout(PATIENCE, group)
        if (self._rank == 0 and self.listed) or (self._rank == 1 and self.place):
            threading.setprofile(self._called)
            sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code not in self._codes:
            return
        if (place := self._place(frame)) in self._seen:
            return
        self._seen.add(place)
        if self._rank == 0:
            with open(self.listed, "a") as file:
                file.write(f"{place}\n")
        elif place == self.place:
            print(f"stopped: {os.getpid()} in {place}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    def _place(self, frame: FrameType) -> str:
        """The innermost line of the package around a collective, but for the helpers; the outermost collective."""
        collective, caller = self._codes[frame.f_code], frame.f_back
        while caller is not None:
            file = caller.f_code.co_filename
            if "/gspo_lightning/" in file and not file.endswith(HELPERS):
                return f"{Path(file).name}:{caller.f_code.co_name} {collective}"
            collective = self._codes.get(caller.f_code, collective)
            caller = caller.f_back
        return f"outside {collective}"
