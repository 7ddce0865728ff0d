"""A patch that puts a defect back, and what its head says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Patch", "read_patches"]

_FIELD = re.compile(r"^(Caught by|Mended by): (\S.*)$")


@dataclass(frozen=True)
class Patch:
    """``said``: what the defect was; ``tests``: ids of those that catch it; ``mended``: the commit that mended it."""

    path: Path
    said: str
    tests: tuple[str, ...]
    mended: str
    hunks: tuple[tuple[str, str, str], ...]
    """File, lines before and lines after, in their order."""

    @property
    def name(self) -> str:
        """Of the defect."""
        return self.path.stem

    def changed(self, tree: Path) -> dict[Path, str]:
        """The files that the patch changes, as they are with it. Lines are found by their text, wherever they stand.

        Raises:
            ValueError: lines of a hunk are not there, or stand there more than once.
        """
        found: dict[Path, str] = {}
        for name, before, after in self.hunks:
            file = tree / name
            text = found.get(file) or "\n" + (file.read_text(encoding="utf-8") if file.is_file() else "")
            if (times := text.count(f"\n{before}")) != 1:
                raise ValueError(f"{self.path.name}: {name} has these lines {times} times:\n{before}")
            found[file] = text.replace(f"\n{before}", f"\n{after}")
        return {file: text[1:] for file, text in found.items()}


def read_patches(folder: Path, names: Sequence[str] = ()) -> list[Patch]:
    """The patches of a folder, or those that are named, in their order."""
    paths = [folder / f"{name}.patch" for name in names] or sorted(folder.glob("*.patch"))
    return [_read(path) for path in paths]


def _read(path: Path) -> Patch:
    head, _, rest = path.read_text(encoding="utf-8").partition("\ndiff --git ")
    fields = [(match[1], match[2]) for line in head.splitlines() if (match := _FIELD.match(line))]
    said = " ".join(line for line in head.splitlines() if not _FIELD.match(line)).strip()
    tests = tuple(value for name, value in fields if name == "Caught by")
    mended = next((value for name, value in fields if name == "Mended by"), "")
    return Patch(path, said, tests, mended, tuple(_hunks(rest)))


def _hunks(diff: str) -> Iterator[tuple[str, str, str]]:
    for part in re.split(r"^\+\+\+ b/", diff, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        for hunk in re.split(r"^@@.*\n", body.partition("\ndiff --git ")[0] + "\n", flags=re.MULTILINE)[1:]:
            lines = [line for line in hunk.splitlines(keepends=True) if line[0] in " -+"]
            before, after = ("".join(line[1:] for line in lines if line[0] != mark) for mark in "+-")
            yield name, before, after
