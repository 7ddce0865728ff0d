"""The configs that ship with the package: ``--config quickstart`` names one wherever the command runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.errors import UserError

__all__ = ["FOLDER", "about", "built_in", "config_file", "with_files"]

FOLDER = Path(__file__).parents[2] / "configs"
"""In a wheel a folder of the package; in a checkout a link to the ``configs/`` at its top."""
_FLAGS = ("--config", "-c")
_NEAR = 5


def built_in() -> dict[str, Path]:
    """Name -> file of every config that ships, those at the top first: ``quickstart``, ``data/math`` ..."""
    files = [*sorted(FOLDER.glob("*.yaml")), *sorted(FOLDER.glob("*/*.yaml"))]
    return {file.relative_to(FOLDER).with_suffix("").as_posix(): file for file in files}


def about(file: Path) -> str:
    """The first sentence of the comment that a config starts with.

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
    """The file that ``--config`` means: one that exists, else a built-in config.

    Args:
        word: a path, or the name of a built-in config, with or without ``.yaml`` and ``configs/``.

    Raises:
        UserError: it is neither, with the names that come near.
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
    """Files beside the one that is missing, then built-in configs, with similar names."""
    files = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    beside = difflib.get_close_matches(path.name, files, n=1)
    last = {one.rpartition("/")[2]: one for one in reversed(known)}  # the top level wins: math before data/math
    by_last = [last[n] for n in difflib.get_close_matches(name.rpartition("/")[2], last, n=3)]
    return list(dict.fromkeys([*beside, *by_last, *difflib.get_close_matches(name, known, n=3)]))[:_NEAR]


def with_files(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with the file that each ``--config`` means in the place of what was written.

    Raises:
        UserError: one is neither a file nor a built-in config.
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
