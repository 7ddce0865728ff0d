"""Report a killed rank by name: Lightning ends all others a moment later without a message."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.core.escape import say
from gspo_lightning.core.faults import has_lost_a_rank

PATIENCE_S = 10.0
"""Seconds that ranks have to end by themselves after the first one has failed."""
_LEFT: list[subprocess.Popen[bytes]] = []
_ENDED = threading.Event()
"""Set when ranks are killed here, which is no news of its own."""


def _end_left() -> None:
    """End the ranks of a failed run that do not end by themselves: stopped ones, or waiting for a disk."""
    end = time.monotonic() + PATIENCE_S
    while any(process.poll() is None for process in _LEFT) and time.monotonic() < end:
        for process in _LEFT:
            if process.poll() is None and _is_stopped(process.pid):
                _ENDED.set()
                process.kill()
        time.sleep(0.05)
    _ENDED.set()
    for process in _LEFT:
        process.kill()


atexit.register(_end_left)  # at import, so before Lightning's own: runs after that has closed connections to the ranks


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] == b"T"


class WatchRanks(Callback):
    """Waits for the ranks that this process started; if one is killed, all end, with exit code 1.

    A rank that does not end with a failed run, as a stopped one (SIGSTOP), is killed :data:`PATIENCE_S` later.

    Ranks started from outside (torchrun, SLURM) are watched there, and see a closed connection.
    """

    def __init__(self) -> None:
        self._over = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start a thread that waits for each rank's process."""
        self._over = False
        ranks: list[subprocess.Popen[bytes]] = getattr(trainer.strategy.launcher, "procs", [])
        for number, process in enumerate(ranks, 1):
            threading.Thread(target=self._watch, args=(number, process, ranks), daemon=True).start()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching, as Lightning may kill the ranks now, unless the exception points to a lost rank.

        Whatever is left of the ranks when this process exits is ended then.
        """
        _LEFT.extend(getattr(trainer.strategy.launcher, "procs", []))
        self._over = not has_lost_a_rank(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching: the ranks end by themselves."""
        self._over = True

    def _watch(self, number: int, process: subprocess.Popen[bytes], ranks: list[subprocess.Popen[bytes]]) -> None:
        code = process.wait()
        if self._over or _ENDED.is_set() or code >= 0:
            return
        self._over = True
        say(
            f"\nerror: rank {number} (process {process.pid}) was killed by {signal.Signals(-code).name}, and all ranks "
            f"end; checkpoints that were finished are intact.\n"
            f"  fix: find out why (dmesg shows kills for lack of memory), then resume with --ckpt_path last",
            file=sys.stderr,
            flush=True,
        )
        for other in ranks:
            other.kill()
        os._exit(1)  # the main thread may wait for the lost rank for half an hour
