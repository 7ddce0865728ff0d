"""Built-in configs: ``--config quickstart`` works from any working directory."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.errors import UserError

__all__ = ["FOLDER", "about", "built_in", "config_file", "with_files"]

FOLDER = Path(__file__).parents[2] / "configs"
"""Folder of built-in configs: in a wheel part of the package, in a checkout a link to the top-level ``configs/``."""
_FLAGS = ("--config", "-c")
_NEAR = 5


def built_in() -> dict[str, Path]:
    """Return name -> file of every built-in config, top-level ones first: ``quickstart``, ``data/math`` ..."""
    files = [*sorted(FOLDER.glob("*.yaml")), *sorted(FOLDER.glob("*/*.yaml"))]
    return {file.relative_to(FOLDER).with_suffix("").as_posix(): file for file in files}


def about(file: Path) -> str:
    """Return the first sentence of a config's leading comment.

    >>> about(built_in()["data/gsm8k"])
    'Grade-school mathematics; solutions end in "#### 42".'
    """
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith("#  "):
            break
        lines.append(line.removeprefix("# "))
    return re.split(r"(?<=\.)\s", " ".join(lines), maxsplit=1)[0]


def config_file(word: str) -> Path:
    """Resolve the value of ``--config``: an existing file, else a built-in config.

    Args:
        word: a path, or the name of a built-in config, with or without ``.yaml`` and ``configs/``.

    Raises:
        UserError: it is neither; the message suggests similar names.
    """
    path, known = Path(word), built_in()
    if path.is_file():
        return path
    name = word.removeprefix("./").removeprefix("configs/").removesuffix(".yaml")
    if name in known:
        return known[name]
    near = _near(path, name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UserError(
        "--config",
        f"{word!r} does not exist: it is neither a file nor a built-in config{hint}",
        fix="give the path of a YAML file, or a name that gspo list configs shows",
    )


def _near(path: Path, name: str, known: dict[str, Path]) -> list[str]:
    """Return similar names: files in the same folder, then built-in configs."""
    files = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    beside = difflib.get_close_matches(path.name, files, n=1)
    last = {one.rpartition("/")[2]: one for one in reversed(known)}  # the top level wins: math before data/math
    by_last = [last[n] for n in difflib.get_close_matches(name.rpartition("/")[2], last, n=3)]
    return list(dict.fromkeys([*beside, *by_last, *difflib.get_close_matches(name, known, n=3)]))[:_NEAR]


def with_files(arguments: Sequence[str]) -> list[str]:
    """Replace the value of each ``--config`` with the file it resolves to.

    Raises:
        UserError: a value is neither a file nor a built-in config.
    """
    found: list[str] = []
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS and equals:
            found.append(f"{flag}={config_file(value)}")
        elif i and arguments[i - 1] in _FLAGS:
            found.append(str(config_file(argument)))
        else:
            found.append(argument)
    return found
