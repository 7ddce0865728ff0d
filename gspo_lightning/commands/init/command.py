"""``gspo init``: a config, a reward with its test, example records and a README, in a folder of their own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.commands.init.records import RECORDS
from gspo_lightning.errors import UserError

__all__ = ["TASKS", "main"]

TEMPLATES = Path(__file__).parent / "templates"
TASKS = {
    "own": "your own reward and data, on a tiny model: offline, under two minutes on a CPU",
    "math": "mathematics with a verifier, on a real model",
    "code": "programs that are run against tests, on a tiny model",
    "logic": "knights and knaves, on a tiny model",
}
_UNCOLLECTED = ".txt"
"""Python files of a template end in it, so that nothing takes them for modules of this package."""


def main(argv: Sequence[str]) -> int:
    """Write a project; nothing that exists is touched.

    Raises:
        UserError: the folder exists and is not empty, or cannot be written.
    """
    parser = argparse.ArgumentParser(
        "gspo init",
        description="Write a project: train.yaml, a reward with its test, example records and a README.",
        epilog="\n".join(["tasks:", *(f"  {name:<7}{text}" for name, text in TASKS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a new or an empty folder")
    parser.add_argument("--task", choices=TASKS, default="own", help="what the project is about (default: own)")
    options = parser.parse_args(list(argv))
    write_project(options.folder, options.task)
    shown = options.folder / "train.yaml"
    print(f"written: {options.folder} ({', '.join(sorted(p.name for p in options.folder.iterdir()))})")
    print(f"next: gspo fit --config {shown}")
    return 0


def write_project(folder: Path, task: str) -> None:
    """Write the files of a task.

    Args:
        folder: is made; an empty one may be there.
        task: one of ``TASKS``.

    Raises:
        UserError: see :func:`main`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("gspo init", f"{str(folder)!r} exists and is not an empty folder", fix="name a new folder")
    files = {
        file.name.removesuffix(_UNCOLLECTED): file.read_text(encoding="utf-8").replace("FOLDER", str(folder))
        for file in sorted((TEMPLATES / task).iterdir())
        if file.is_file()
    }
    files |= RECORDS[task]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with open(folder / name, "x", encoding="utf-8") as file:  # never over a file that came meanwhile
                file.write(text)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise UserError("gspo init", f"{str(folder)!r} cannot be written: {why}", fix="name another folder") from error
