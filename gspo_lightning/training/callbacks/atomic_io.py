"""Save checkpoints atomically: write a temporary file, sync it, swap it in, then list it in a manifest."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from gspo_lightning.core.errors import chain
from gspo_lightning.core.temp_files import remove
from gspo_lightning.resume import (
    Manifest,
    atomic_file,
    check_finite,
    is_folder,
    manifest_path,
    next_serial,
    swapping,
    uninterrupted,
    unwritable,
)
from gspo_lightning.resume.unsharded import whole_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint next to its target, syncs it, swaps it in, and writes its manifest last.

    A kill at any moment leaves the old file. Lightning stages in the temp directory and moves the file; across file
    systems that is a copy, and a kill during the copy destroys the old file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Save a checkpoint, and refuse one with a NaN or infinity.

        Ctrl-C leaves the old file, or the new one with its manifest.

        Args:
            checkpoint: tensors and primitives.
            path: the target file.
            storage_options: ``{"score": float, "ranks": int}`` for the manifest, ``{"optimizer": False}`` to leave out
                its state, ``{"async_save": AsyncSave}`` to write it in a thread; or None.

        Raises:
            NonFiniteError: a weight or an optimizer state is not finite.
            InfrastructureError: the file cannot be written; the old file is untouched.
        """
        with _os_errors_named(Path(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)  # not in the thread: the run may be deleted meanwhile
        options = storage_options or {}
        if not options.get("optimizer", True):
            checkpoint = {**checkpoint, "optimizer_states": []}
        check_finite(checkpoint)
        write = functools.partial(self._write, Path(path), options)
        async_save = options.get("async_save")
        if async_save is None:
            write(checkpoint)
        else:
            async_save.start(checkpoint, write)

    def _write(self, target: Path, options: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        with _os_errors_named(target), swapping(target.parent), contextlib.ExitStack() as stack:
            with atomic_file(target) as file:
                _save(checkpoint, file)
                stack.enter_context(uninterrupted())  # a swapped-in file must get its manifest
            files = {target.name: (file.bytes, file.sha256)}
            serial = next_serial(target.parent)
            step = int(checkpoint.get("global_step", 0))
            Manifest(files, step, serial, options.get("score"), options.get("ranks")).write(target)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint; of a folder of shards, for a process that has no shards, everything but optimizer state.

        Raises:
            UserError: the folder cannot be read.
        """
        if is_folder(Path(path)):
            return whole_checkpoint(Path(path), "ckpt_path")
        content: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
        return content

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove the checkpoint, then its manifest: a lone manifest is recognised, a lone checkpoint would stay."""
        remove(Path(path))
        manifest_path(Path(path)).unlink(missing_ok=True)


@contextlib.contextmanager
def _os_errors_named(target: Path) -> Iterator[None]:
    """Raise errors of the operating system as InfrastructureError that names the file."""
    try:
        yield
    except OSError as error:
        raise unwritable(target, error) from error


def _save(checkpoint: dict[str, Any], file: Any) -> None:
    """Call ``torch.save``; raise Ctrl-C or the operating system's error, not the clean-up error on top of it."""
    try:
        torch.save(checkpoint, file)
    except Exception as error:
        causes = [cause for cause in chain(error) if isinstance(cause, OSError) or not isinstance(cause, Exception)]
        raise causes[0] if causes else error  # noqa: B904 (the cause is the error)
