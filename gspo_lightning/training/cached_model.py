"""A model that is made once and kept in a folder: believed by its checksums, and by nothing else."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from gspo_lightning.resume import Manifest, damage, manifest_path, sync_folder, synced
from gspo_lightning.resume.writer import NO_LOCKS
from gspo_lightning.unfinished import beside, remove, sweep

__all__ = ["found_or_made"]

log = logging.getLogger(__name__)


def found_or_made(target: Path, make: Callable[[Path], None], *, what: str, steps: int) -> None:
    """Leave a whole model at ``target``: the one that is there, or a new one.

    One that is not exactly what was written, or that nothing vouches for because it was made before there were
    manifests, is named, moved aside and made again: the same settings make the same weights, and a certificate for
    what may be damaged already would be worth nothing. Several processes make it once.

    Args:
        target: a folder; its manifest stands beside it.
        make: writes the model to a folder that is not there yet.
        what: how messages call it.
        steps: for the manifest.

    Raises:
        OSError: it cannot be written; what was there is as it was, or moved aside.
        UserError: it is there, but may not be read.
    """
    if target.exists() and _damage(target) is None:
        log.info("%s: found in %s", what, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(target) as alone:
        why = _damage(target) if target.exists() else "missing"
        if why is None:
            return  # made by another process, meanwhile
        if target.exists():
            aside = _move_aside(target)
            log.warning("%s: %s is damaged (%s); moved to %s, and recomputed", what, target, why, aside)
        sweep(target.parent, target.name, alone=alone)
        unfinished = beside(target)
        remove(unfinished)
        make(unfinished)
        _swap_in(unfinished, target, steps)
        log.info("%s: written to %s", what, target)


def _damage(target: Path) -> str | None:
    """Why a model cannot be trusted; files that were added may be loaded, too."""
    why = damage(target)
    if why is None and (added := _files(target) - Manifest.read(target).files.keys()):
        return f"{min(added)} was added"
    return why


def _files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder.parent)) for file in folder.rglob("*") if not file.is_dir()}


def _swap_in(unfinished: Path, target: Path, steps: int) -> None:
    """The manifest first: the folder that appears is vouched for at once."""
    written = {
        f"{target.name}/{file.relative_to(unfinished)}": synced(file)
        for file in unfinished.rglob("*")
        if not file.is_dir()
    }
    sync_folder(unfinished)
    if target.exists():  # without locks: another process was quicker, and made the same
        remove(unfinished)
        return
    Manifest(written, steps, serial=1).write(target)
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
    """Waits for who makes the same; says whether it was possible to wait."""
    lock, alone = FileLock(f"{target}.lock"), True
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
