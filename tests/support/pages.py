"""Code in the documents: its blocks, and a folder with the files that a page shows."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests import ROOT

__all__ = ["PAGES", "blocks", "write_files"]

PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"(?:<!-- (\S+) -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(path under ``<!-- path -->`` or nothing, language, text) of every fenced block that names a language."""
    return [(name, language, text) for name, language, text in BLOCK.findall(page.read_text(encoding="utf-8"))]


def write_files(page: Path, folder: Path) -> None:
    """A clone's folders of configs, plug-ins, examples and experiments, and the files that the page shows.

    What ships is linked and not copied: a plug-in may not be defined in two places.
    """
    for name in ("configs", "plugins", "examples", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, copy_function=os.symlink)
    for name, _, text in blocks(page):
        file = folder / name
        if name and not (file.is_file() and file.read_text(encoding="utf-8") == text):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.write_text(text, encoding="utf-8")
