"""A callback that breaks the disk at the moment at which a run first writes a certain file behind its first update."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.training.callbacks.folder import run_folder


def key(name: str) -> str:
    """The name of a file without numbers, and that of the target of an unfinished one."""
    plain = re.sub(r"\.(.+)\.[^.]+\.\d+\.unfinished$", r"\1", Path(name).name)
    return re.sub(r"\d+", "N", str(Path(name).with_name(plain))) if plain else name


class Faulty(Callback):
    """Breaks the disk: ``full``, ``read-only`` (nothing can be opened for writing), or the file is ``removed``."""

    def __init__(self, disk: str, target: str, fault: str) -> None:
        self.disk, self.target, self.fault = Path(disk), target, fault
        self._run, self._armed, self._done = Path(), False, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run = run_folder(trainer).absolute()
        sys.addaudithook(self._watch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._armed = trainer.global_step >= 2
        if trainer.global_step == 3 and (self.fault == "removed" or self.target.startswith("events")):
            self._break(self._run / self.target)  # events stay open; what is removed is so between two writes

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event != "open"
            or self.fault == "removed"
            or self._done
            or not self._armed
            or not isinstance(arguments[0], str | bytes)
        ):
            return
        path, flags = Path(os.fsdecode(arguments[0])), arguments[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR) or not path.is_relative_to(self._run):
            return
        if key(str(path.relative_to(self._run))) == self.target:
            self._break(path)

    def _break(self, path: Path) -> None:
        self._done = True
        if self.fault == "full":
            with open(self.disk / "filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                except OSError:
                    pass
        elif self.fault == "read-only":
            for options in (["--bind", str(self._run)], ["-o", "remount,ro,bind"]):
                subprocess.run(["mount", *options, str(self._run)], check=True)
        else:
            for file in self._run.rglob("*"):
                if file.is_file() and key(str(file.relative_to(self._run))) == self.target:
                    file.unlink()
        print(f"broken: {path}", file=sys.stderr, flush=True)
