"""Say where every rank is when a run of several ranks no longer moves on, before the timeout of its collectives."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.core.escape import say
from gspo_lightning.training.callbacks.folder import run_folder

SHARE = 0.9
"""Part of the timeout after which a run without progress is reported."""
PATIENCE_S = 10.0
"""Seconds for which rank 0 waits for the files of other ranks, and no more than half of the time that is left."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).parents[2])


class Watchdog(Callback):
    """Reports a run that hangs: every rank writes its stacks to ``stacks/rank-N.txt`` of the run folder.

    Ranks move on together, so each of them notices by itself that no update and no batch of an evaluation has begun or
    ended for nine tenths of the strategy's timeout. Rank 0 then says where every rank is: the one that does not wait in
    a collective holds up the others; one that wrote nothing is stopped, or its machine is lost. The timeout itself, in
    torch, ends the run.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._moved = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to watch if there are several ranks and their collectives have a timeout."""
        timeout = getattr(trainer.strategy, "_timeout", None)
        if trainer.world_size == 1 or timeout is None:
            return
        self._over = threading.Event()
        self._moved = time.monotonic()
        folder = run_folder(trainer) / "stacks"
        arguments = (timeout.total_seconds() * SHARE, folder, trainer.global_rank, trainer.world_size)
        threading.Thread(target=self._watch, args=arguments, name="watchdog", daemon=True).start()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching."""
        self._over.set()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching."""
        self._over.set()

    def on_train_batch_start(self, *_: Any) -> None:
        """Note that the run has moved on."""
        self._moved = time.monotonic()

    on_train_batch_end = on_validation_batch_start = on_validation_batch_end = on_train_batch_start

    def _watch(self, seconds: float, folder: Path, rank: int, world: int) -> None:
        while not self._over.wait(max(self._moved + seconds - time.monotonic(), 0.05)):
            if time.monotonic() < self._moved + seconds:
                continue
            began = time.time()
            self._moved = time.monotonic()
            _write_stacks(folder / f"rank-{rank}.txt")
            if rank == 0:
                patience_s = min(PATIENCE_S, seconds * (1 / SHARE - 1) / 2)
                say(
                    f"\nwarning: no update and no batch of an evaluation has begun or ended for {seconds:.0f} s; a "
                    f"collective that waits for {seconds / SHARE:.0f} s ends the run. Stacks of all ranks are in "
                    f"{folder}:\n" + "\n".join(_places(folder, world, began - seconds / 2, patience_s)),
                    file=sys.stderr,
                    flush=True,
                )


def _write_stacks(file: Path) -> None:
    """Write the stack of every thread of this process, the main thread first."""
    main = threading.main_thread()
    frames = sys._current_frames()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not main)
    stacks = [(thread.name, frames[thread.ident]) for thread in threads if thread.ident in frames]
    text = _place(traceback.extract_stack(stacks[0][1])) + "\n"
    for name, frame in stacks:
        text += f"\nThread {name}:\n{''.join(traceback.format_stack(frame))}"
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def _place(stack: traceback.StackSummary) -> str:
    """Return the innermost line of a stack that belongs to no library; the innermost of all without one."""
    libraries = (*_LIBRARIES, "<")  # "<frozen importlib>" and the like
    frames = [f for f in stack if f.filename.startswith(_PACKAGE) or not f.filename.startswith(libraries)]
    last = (frames or stack)[-1]
    return f"{os.path.relpath(last.filename)}:{last.lineno} in {last.name}: {last.line}"


def _places(folder: Path, world: int, since: float, patience_s: float) -> list[str]:
    """Return a line for each rank, from the files that were written after ``since``."""
    places: dict[int, str] = {}
    end = time.monotonic() + patience_s
    while len(places) < world and time.monotonic() < end:
        time.sleep(0.1)
        for rank in range(world):
            file = folder / f"rank-{rank}.txt"
            if file.exists() and file.stat().st_mtime > since:
                places[rank] = file.read_text(encoding="utf-8").split("\n", 1)[0]
    missing = "wrote nothing: it is stopped, or its machine is lost"
    return [f"  rank {rank}: {places.get(rank, missing)}" for rank in range(world)]
