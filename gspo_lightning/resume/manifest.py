"""Manifest beside each checkpoint: its files with checksums. A checkpoint without one is unfinished."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError, first_line, is_finite
from gspo_lightning.core.parsing import load_json, whole_number
from gspo_lightning.resume.files import sha256, write_text

SUFFIX = ".manifest.json"
"""Suffix of a checkpoint's name."""


@dataclass(frozen=True)
class Manifest:
    """Files of a checkpoint, and its place in the run."""

    files: Mapping[str, tuple[int, str]]
    """File name, relative to the manifest's folder -> (bytes, hexadecimal SHA-256)."""
    step: int
    """Optimizer steps made before the checkpoint."""
    serial: int
    """Grows with every checkpoint of a folder; decides which is newest (clocks may go back)."""
    score: float | None = None
    """Value of the metric that ranks checkpoints."""
    ranks: int | None = None
    """In the middle of an iteration: the number of ranks that can go on from it; None: any."""
    format: int = field(default=1)

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(size for size, _ in self.files.values())

    def write(self, checkpoint: Path) -> None:
        """Write the manifest as the last step of saving, which completes the checkpoint.

        Raises:
            OSError: it cannot be written.
        """
        write_text(manifest_path(checkpoint), json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, checkpoint: Path) -> Manifest:
        """Read the manifest of a checkpoint.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is no manifest.
        """
        content: Any = load_json(manifest_path(checkpoint).read_text(encoding="utf-8"))
        try:
            files = {}
            for name, (size, digest) in content["files"].items():
                files[str(name)] = (whole_number(size, f"files.{name}"), str(digest))
            step = whole_number(content["step"], "step")
            serial = whole_number(content["serial"], "serial")
            form = whole_number(content["format"], "format")
            score = content["score"]
            ranks = content.get("ranks")
            if ranks is not None:
                ranks = whole_number(ranks, "ranks")
            if score is not None and not is_finite(score):
                raise ValueError(f"score is {score!r:.60}, not a finite number")
            return cls(files, step, serial, None if score is None else float(score), ranks, form)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a manifest: {error!r}") from error


def manifest_path(checkpoint: Path) -> Path:
    """Return the manifest's path: ``step-00000004.ckpt`` -> ``step-00000004.ckpt.manifest.json``."""
    return checkpoint.with_name(checkpoint.name + SUFFIX)


def manifests(folder: Path) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints of a folder with a readable manifest, the newest first; content is not verified."""
    checkpoints = []
    for file in folder.glob(f"*{SUFFIX}"):
        checkpoint = file.with_name(file.name.removesuffix(SUFFIX))
        try:
            checkpoints.append((checkpoint, Manifest.read(checkpoint)))
        except (OSError, ValueError):
            continue
    return sorted(checkpoints, key=lambda pair: (pair[1].serial, pair[1].step), reverse=True)


def next_serial(folder: Path) -> int:
    """Return the serial of a folder's next checkpoint."""
    return 1 + max((manifest.serial for _, manifest in manifests(folder)), default=0)


def damage(checkpoint: Path) -> str | None:
    """Return why a checkpoint cannot be trusted; None if it is exactly what was written.

    Raises:
        UserError: a file of it may not be read, so its content cannot be verified.
    """
    try:
        return _damage(checkpoint)
    except PermissionError as error:
        problem = f"may not be read: {error.strerror}; whether it is whole cannot be told"
        fix = "have its owner make it readable (chmod a+r), or use a folder of your own (trainer.default_root_dir)"
        raise UserError(str(error.filename or checkpoint), problem, fix=fix) from error


def _damage(checkpoint: Path) -> str | None:
    try:
        manifest = Manifest.read(checkpoint)
    except FileNotFoundError:
        return "incomplete: it has no manifest"
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read: {first_line(error)}"
    if checkpoint.name not in {name.split("/")[0] for name in manifest.files}:
        return "its manifest belongs to another checkpoint"
    for name, (size, digest) in manifest.files.items():
        file = checkpoint.parent / name
        try:
            if not file.is_file():
                return f"{name} is missing"
            size_now = file.stat().st_size
            if size_now < size:
                return f"torn: {size_now:,} of {size:,} bytes"
            if size_now > size:
                return f"altered: {size_now:,} bytes, not {size:,}"
            if sha256(file) != digest:
                return "altered: its checksum is another one"
        except PermissionError:
            raise
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None
