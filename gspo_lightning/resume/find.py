"""Find the checkpoint of ``--ckpt_path last``: the newest run, and its newest intact checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume.folders import METADATA, is_folder
from gspo_lightning.resume.manifest import SUFFIX, Manifest, damage, manifest_path, manifests
from gspo_lightning.resume.reading import check_shards, read_tensors

log = logging.getLogger(__name__)

LAST = "last.ckpt"
"""Link to the newest checkpoint of a run, for people; the search does not rely on it."""


@dataclass(frozen=True)
class Found:
    """The checkpoint to resume from, and those that were skipped."""

    checkpoint: Path
    skipped: list[tuple[Path, str]] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line for the log."""
        return f"resuming from {self.described}"

    @property
    def described(self) -> str:
        """Path of the checkpoint, and the names of those that were skipped with their damage."""
        return "; ".join([str(self.checkpoint), *(f"skipped {path.name} ({why})" for path, why in self.skipped)])


def find_checkpoint(run: Path, field: str = "ckpt_path", ranks: int | None = None) -> Found | None:
    """Return the newest intact checkpoint of a run; None if the run never finished writing one.

    A run that was killed between its first checkpoint and that one's manifest has one file, and no link to it yet.

    Args:
        run: the run folder.
        field: the run's name in messages.
        ranks: skip those from the middle of an iteration of another number of ranks; None keeps them.

    Raises:
        UserError: it has checkpoints, but none is intact.
    """
    folder = run / "checkpoints"
    skipped: list[tuple[Path, str]] = []
    for path in candidates(folder):
        reason = damage(path)
        if reason is None and ranks is not None:
            of_ranks = Manifest.read(path).ranks
            if of_ranks not in (None, ranks):
                reason = f"in the middle of an iteration of {of_ranks} ranks"
        if reason is None:
            return Found(path, skipped)
        skipped.append((path, reason))
    if not has_checkpoint(run):
        return None
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in skipped[:3])
    problem = f"no checkpoint in {folder} is whole ({reasons})"
    if field == "ckpt_path":
        fix = "start again without --ckpt_path, or give a checkpoint of another run"
        raise UserError(field, f"'last', but {problem}", fix=fix)
    raise UserError(field, problem, fix="give another run")


def has_checkpoint(run: Path) -> bool:
    """True if a run has finished writing a checkpoint, which may be damaged since; it is not read."""
    folder = run / "checkpoints"
    paths = candidates(folder)
    if len(paths) != 1 or paths[0].name == LAST:
        return bool(paths)
    return manifest_path(paths[0]).exists() or (folder / LAST).is_symlink()


def newest_of_run(path: Path, field: str) -> Found | None:
    """Return the newest intact checkpoint if a path is a run folder; None if it is not one.

    Args:
        path: a run folder, or anything else that a command takes.
        field: the path's name in messages.

    Raises:
        UserError: the run has no checkpoint, or none that is intact.
    """
    if not (path / "checkpoints").is_dir():
        return None
    newest = find_checkpoint(path, field)
    if newest is None:
        raise UserError(field, f"the run {path} has no checkpoint yet", fix="give another run")
    return newest


def checkpoint_at(path: Path, field: str) -> Path:
    """Return the newest intact checkpoint of a run folder, and log its name; any other path is returned as it is.

    Raises:
        UserError: see :func:`newest_of_run`.
    """
    newest = newest_of_run(path, field)
    if newest is None:
        return path
    _say(f"{path}: {newest.described}")
    return newest.checkpoint


def candidates(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first and unverified.

    Those without a readable manifest are ordered by step.
    """
    paths = [path for path, _ in manifests(folder)]
    orphans = {path for path in folder.glob("*.ckpt") if path.name != LAST}
    orphans |= {file.with_name(file.name.removesuffix(SUFFIX)) for file in folder.glob(f"*{SUFFIX}")}
    orphans -= set(paths)
    last = folder / LAST
    if last.exists() and not last.is_symlink():
        orphans.add(last)  # someone put a file in the place of the link
    for orphan in sorted(orphans):  # behind every later step
        later = [i for i, path in enumerate(paths) if path.name > orphan.name and orphan.name != LAST]
        paths.insert(max(later) + 1 if later else 0, orphan)
    return paths


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders ``version_N`` of a folder, the newest first."""
    runs = [p for p in folder.glob("version_*") if p.is_dir() and p.name.removeprefix("version_").isdigit()]
    return sorted(runs, key=lambda p: int(p.name.removeprefix("version_")), reverse=True)


def newest_run(folder: Path, runs: Sequence[Path] | None = None) -> Path | None:
    """Return the run folder that ``last`` continues; None if there is no run.

    It is the newest one. If that was stopped before its first checkpoint, an older unfinished run with checkpoints is
    preferred: there is more to lose.

    Args:
        folder: folder with runs.
        runs: those of them that are meant, the newest first; None means all.
    """
    runs = runs_in(folder) if runs is None else runs
    for i, run in enumerate(runs):
        if has_checkpoint(run) and (i == 0 or not (run / "summary.json").exists()):
            return run
    return runs[0] if runs else None


def read_checkpoint(path: Path, field: str = "ckpt_path") -> dict[str, Any]:
    """Read a checkpoint; tensors stay on the disk until they are used, and no code in it is run.

    The content is verified against its manifest, if there is one. A folder gives everything but weights and optimizer
    state.

    Args:
        path: a file or a folder of shards.
        field: the path's name in messages.

    Raises:
        UserError: it cannot be read.
    """
    fix = "give another checkpoint"
    if field == "ckpt_path":
        fix += ", or --ckpt_path last for the newest one that is whole"
    if not path.exists():
        raise UserError(field, f"{str(path)!r} does not exist", fix=fix)
    folder = is_folder(path)
    if path.is_dir() and not folder:
        raise UserError(field, f"{path} is neither a run folder, which has checkpoints/, nor a checkpoint", fix=fix)
    resolved = path.resolve()
    if not manifest_path(resolved).exists():
        _say(f"{path} has no manifest next to it: it is used unverified")
    else:
        fault = damage(resolved)
        if fault:
            raise UserError(field, f"{path} cannot be read: {fault}", fix=fix)
    content = read_tensors(path / METADATA if folder else path, field, fix=fix, mmap=True)
    if not isinstance(content, dict) or "global_step" not in content or not ("state_dict" in content or folder):
        raise UserError(field, f"{path} cannot be read: it was not written by gspo fit", fix=fix)
    if folder:
        check_shards(path, field, fix=fix)
    return content


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)
