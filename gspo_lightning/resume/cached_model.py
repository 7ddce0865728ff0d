"""Make a model once and keep it in a folder, verified by its checksums."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from gspo_lightning.core.temp_files import remove, sweep, temp_path
from gspo_lightning.resume import Manifest, damage, manifest_path, sync_folder, synced
from gspo_lightning.resume.writer import NO_LOCKS

log = logging.getLogger(__name__)


def found_or_made(target: Path, make: Callable[[Path], None], *, what: str, steps: int) -> None:
    """Ensure that an intact model is at ``target``: reuse it, or make it.

    A model that differs from its manifest, or has no manifest because it is older than manifests, is reported, moved
    aside and made again. The same settings make the same weights, and a new manifest for files that may be damaged
    already would be worth nothing. Several processes make it once.

    Args:
        target: a folder; its manifest is beside it.
        make: writes the model to a folder that does not exist yet.
        what: the model's name in messages.
        steps: for the manifest.

    Raises:
        OSError: it cannot be written; the previous model is unchanged, or moved aside.
        UserError: it exists, but may not be read.
    """
    if target.exists() and _damage(target) is None:
        log.info("%s: found in %s", what, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(target) as alone:
        fault = _damage(target) if target.exists() else "missing"
        if fault is None:
            return  # made by another process meanwhile
        if target.exists():
            aside = _move_aside(target)
            log.warning("%s: %s is damaged (%s); moved to %s, and recomputed", what, target, fault, aside)
        sweep(target.parent, target.name, alone=alone)
        unfinished = temp_path(target)
        remove(unfinished)
        make(unfinished)
        _swap_in(unfinished, target, steps)
        log.info("%s: written to %s", what, target)


def _damage(target: Path) -> str | None:
    """Return why a model cannot be trusted, or None. Added files count, too: they may be loaded."""
    fault = damage(target)
    if fault is not None:
        return fault
    added = _files(target) - Manifest.read(target).files.keys()
    return f"{min(added)} was added" if added else None


def _files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder.parent)) for file in folder.rglob("*") if not file.is_dir()}


def _swap_in(unfinished: Path, target: Path, steps: int) -> None:
    """Write the manifest, then rename the folder, so that it is vouched for as soon as it appears."""
    files = {}
    for file in unfinished.rglob("*"):
        if not file.is_dir():
            files[f"{target.name}/{file.relative_to(unfinished)}"] = synced(file)
    sync_folder(unfinished)
    if target.exists():  # without locks: another process finished the same model first
        remove(unfinished)
        return
    Manifest(files, steps, serial=1).write(target)
    unfinished.rename(target)
    sync_folder(target.parent)


def _move_aside(target: Path) -> Path:
    names = (target.with_name(f"{target.name}.damaged-{number}") for number in range(1, 10_000))
    aside = next(path for path in names if not path.exists())
    os.replace(target, aside)
    manifest_path(target).unlink(missing_ok=True)
    return aside


@contextlib.contextmanager
def _one_at_a_time(target: Path) -> Iterator[bool]:
    """Wait for a process that makes the same model; yield False if the file system has no locks."""
    lock = FileLock(f"{target}.lock")
    alone = True
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s is on a file system without locks: several runs may make the same model", target.parent)
        alone = False
    try:
        yield alone
    finally:
        lock.release()
