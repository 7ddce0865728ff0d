"""State of an unfinished cold start on the disk: a killed one continues at the step it had reached."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.resume import (
    Manifest,
    atomic_file,
    damage,
    manifest_path,
    manifests,
    next_serial,
    read_tensors,
)

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""Least number of seconds between two saves."""
SHARE = 20.0
"""Least ratio of that time to the time of a save, so that saving takes at most 5 % of a cold start."""


class SavedProgress:
    """The newest state of a cold start, in a folder beside its result; the state decides every later step.

    Args:
        target: where the result will be.
    """

    def __init__(self, target: Path) -> None:
        self.folder = target.with_name(f"{target.name}.progress")
        self._last = time.monotonic()
        self._took = 0.0

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that is intact; None if there is none."""
        for path, manifest in manifests(self.folder):
            reason = damage(path)
            if reason is None:
                log.info("cold start: continuing behind step %d", manifest.step)
                state: dict[str, Any] = read_tensors(path, "cold_start")
                return state
            log.warning("cold start: %s is not used (%s)", path, reason)
        return None

    def save_if_due(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state behind a step if the last save is long ago.

        Raises:
            InfrastructureError: it cannot be written.
        """
        if time.monotonic() - self._last >= max(EVERY_S, SHARE * self._took):
            self.save(step, state)

    def save(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state behind a step, and remove the one before.

        Raises:
            InfrastructureError: it cannot be written.
        """
        start = time.monotonic()
        path = self.folder / f"step-{step:08d}.pt"
        earlier = manifests(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                torch.save(state(), cast(Any, file))
            Manifest({path.name: (file.bytes, file.sha256)}, step, next_serial(self.folder)).write(path)
        except OSError as error:
            problem = f"the state of the cold start cannot be written to {path}: {error.strerror or error}"
            raise InfrastructureError(
                f"{problem}\n  fix: make room, or the folder writable, and repeat the command"
            ) from error
        for old, _ in earlier:
            if old != path:
                old.unlink(missing_ok=True)
                manifest_path(old).unlink(missing_ok=True)
        self._last = time.monotonic()
        self._took = self._last - start

    def remove(self) -> None:
        """Remove all states: the result is there. On a file system without locks another process may do the same."""
        shutil.rmtree(self.folder, ignore_errors=True)
