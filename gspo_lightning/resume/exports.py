"""Write folders of exported models atomically, and replace nothing but an earlier export."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.faults import written
from gspo_lightning.core.temp_files import remove, sweep, temp_path
from gspo_lightning.resume.files import replace_folder, sync_tree

MARK = "gspo_export.json"
"""File that lists the files of an export; written last."""
_CARD = "README.md"
_OLDER = (
    _CARD, "*.png", "*config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "vocab.*", "merges.txt",
    "*tokens*.json", "*.model", "chat_template*", "*.py",
)  # fmt: skip
"""File names in exports without a list."""


def check_replaceable(target: Path, sources: Iterable[Path], field: str = "output") -> None:
    """Check that replacing a folder would delete nothing but an earlier export.

    Args:
        target: the folder to replace; may be missing.
        sources: files and folders that are still needed.
        field: the target's name in messages.

    Raises:
        UserError: it is no folder, was not written by an export, has other files too, or holds something needed.
    """
    target = target.resolve()
    fix = "give another folder"
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(field, f"{target} is a file", fix=fix)
    needed = [(Path(source), str(source)) for source in sources]
    for path, description in [*needed, *_places()]:
        places = (path.resolve(), path.parent.resolve() / path.name)  # for a link, both places
        if path.exists() and any(place.is_relative_to(target) for place in places):
            raise UserError(field, f"{target} is or holds {description}, and would be deleted", fix=fix)
    files = {str(path.relative_to(target)) for path in target.rglob("*")}
    exported = _files_of_export(target, files)
    if exported is None and files:
        raise UserError(field, f"{target} was not written by gspo export, and would be deleted", fix=fix)
    others = sorted(files - (exported or set()))
    if others:
        problem = f"{target} holds {others[0]}, which no export wrote"
        if len(others) > 1:
            problem += f", and {len(others) - 1} more"
        raise UserError(field, problem, fix=f"{fix}, or move that file away")


@contextlib.contextmanager
def exported_folder(target: Path, sources: Iterable[Path], field: str = "output") -> Iterator[Path]:
    """Yield a folder to write a model to, which then replaces ``target``; a kill leaves the old one or the new one.

    Args:
        target: an existing export is replaced; a link is followed.
        sources: see :func:`check_replaceable`.
        field: the target's name in messages.

    Raises:
        UserError: see :func:`check_replaceable`, which runs just before the replacement; writing a model takes
            minutes, so callers run it before they begin, too.
        InfrastructureError: the folder cannot be written; nothing of it is left.
    """
    target = target.resolve()
    unfinished = temp_path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, target.name)
    remove(unfinished)
    with written(str(target), unfinished):
        yield unfinished
        files = sorted(str(p.relative_to(unfinished)) for p in unfinished.rglob("*") if not p.is_dir())
        (unfinished / MARK).write_text(json.dumps({"files": [*files, MARK]}, indent=1) + "\n", encoding="utf-8")
        sync_tree(unfinished)
        check_replaceable(target, sources, field)
        replace_folder(unfinished, target)


def _places() -> Iterator[tuple[Path, str]]:
    with contextlib.suppress(OSError):  # the directory was deleted
        yield Path.cwd(), "the working directory"
    with contextlib.suppress(RuntimeError):
        yield Path.home(), "your home directory"


def _files_of_export(folder: Path, found: set[str]) -> set[str] | None:
    """Return the files that an export wrote there; None if it is no export."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        listed: Any = json.loads((folder / MARK).read_text(encoding="utf-8"))
        names = [Path(name) for name in listed["files"]]
        return {str(part) for name in names for part in (name, *name.parents)}
    with contextlib.suppress(OSError, ValueError):
        if "\n- gspo_lightning\n" in (folder / _CARD).read_text(encoding="utf-8").partition("\n---\n")[0] + "\n":
            return {name for name in found if any(fnmatch(name, kind) for kind in _OLDER)}
    return None
