"""Read every file of an export for places on the machine that wrote it."""

from __future__ import annotations

from pathlib import Path


def assert_no_paths(folder: Path, *places: Path) -> None:
    """Check that no file of a folder holds a path of this machine.

    Args:
        folder: an export.
        places: folders of the run.
    """
    forbidden = [f"{place}/" for place in (Path.home(), Path.cwd(), *places)]
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for text in forbidden:
                assert text.encode() not in content, f"{file.name} holds {text}"
