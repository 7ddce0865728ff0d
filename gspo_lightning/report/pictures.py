"""Store and show thumbnails of prompts' pictures: ``pictures/`` of a run folder, named by hash."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.unfinished import beside

__all__ = ["FOLDER", "copy_thumbnails", "keep_thumbnails", "picture_cell", "thumbnail_file"]

FOLDER = "pictures"
_HASH = re.compile(r"[0-9a-f]{64}")


def thumbnail_file(sha256: str) -> str:
    """Return the path of a picture's thumbnail, relative to the run folder."""
    return f"{FOLDER}/{sha256[:32]}.png"


def keep_thumbnails(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write thumbnails (hash of a picture -> PNG) that the run folder lacks, each atomically."""
    for sha256, data in files.items():
        target = folder / thumbnail_file(sha256)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished = beside(target)
            unfinished.write_bytes(data)
            os.replace(unfinished, target)


def picture_cell(folder: Path, row: Mapping[str, Any]) -> str:
    """Return Markdown that shows the thumbnails of a row's pictures, and the number of those not shown.

    Args:
        folder: the run folder, beside the page.
        row: holds hashes under ``pictures``. They come from a file: an entry that is not a hash, or has no thumbnail,
            is counted and not shown.
    """
    known = _known(row.get("pictures"))
    shown = [name for name in known if (folder / thumbnail_file(name)).is_file()]
    more = _count(row.get("pictures")) - len(shown)
    images = " ".join(f"![picture]({thumbnail_file(name)})" for name in shown)
    return f"{images} and {more} more" if images and more else images or (f"{more} not shown" if more else " ")


def copy_thumbnails(folder: Path, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Copy the thumbnails of some rows to a report that is written elsewhere."""
    for row in rows if out.resolve() != folder.resolve() else ():
        for name in _known(row.get("pictures")):
            source, target = folder / thumbnail_file(name), out / thumbnail_file(name)
            if source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                unfinished = beside(target)
                shutil.copyfile(source, unfinished)
                os.replace(unfinished, target)


def _known(names: Any) -> list[str]:
    return [n for n in names if isinstance(n, str) and _HASH.fullmatch(n)] if isinstance(names, list) else []


def _count(names: Any) -> int:
    return len(names) if isinstance(names, list) else 0
