"""Config files: built-in ones by name (``--config quickstart`` works from anywhere), and relative paths in them."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from gspo_lightning.core.errors import UserError, nearest
from gspo_lightning.core.parsing import PATH_SETTINGS, compose_yaml

FOLDER = Path(__file__).parents[2] / "configs"
"""Folder of built-in configs: in a wheel part of the package, in a checkout a link to the top-level ``configs/``."""
SCHEMA_LINE = "# yaml-language-server: $schema="
"""First line of a config, by which editors find its schema (``gspo schema``)."""
_FLAGS = ("--config", "-c")
_NEAR = 5
_SECTIONS = ("plugins", "ckpt_path", "model", "data")
"""Top-level settings with paths to read; paths under ``trainer`` are for writing and stay as they are."""


def built_in() -> dict[str, Path]:
    """Return name -> file of every built-in config, top-level ones first: ``quickstart``, ``data/math`` ..."""
    files = [*sorted(FOLDER.glob("*.yaml")), *sorted(FOLDER.glob("*/*.yaml"))]
    return {file.relative_to(FOLDER).with_suffix("").as_posix(): file for file in files}


def about(file: Path) -> str:
    """Return the first sentence of a config's leading comment, after the line for editors.

    >>> about(built_in()["data/gsm8k"])
    'Grade-school mathematics; solutions end in "#### 42".'
    """
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith(SCHEMA_LINE):
            continue
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
    path = Path(word)
    if path.is_file():
        return path
    shipped = built_in()
    name = word.removeprefix("./").removeprefix("configs/").removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    near = _near(path, name, shipped)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UserError(
        "--config",
        f"{word!r} does not exist: it is neither a file nor a built-in config{hint}",
        fix="give the path of a YAML file, or a name that gspo list configs shows",
    )


def _near(path: Path, name: str, shipped: dict[str, Path]) -> list[str]:
    """Return similar names: files in the same folder, then built-in configs."""
    names = []
    files = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near_file = nearest(path.name, files)
    if near_file is not None:
        names.append(near_file)
    by_last_part = {full.rpartition("/")[2]: full for full in reversed(shipped)}  # math before data/math
    names += [by_last_part[part] for part in difflib.get_close_matches(name.rpartition("/")[2], by_last_part, n=3)]
    names += difflib.get_close_matches(name, shipped, n=3)
    return list(dict.fromkeys(names))[:_NEAR]


def with_files(arguments: Sequence[str]) -> list[str]:
    """Replace the value of each ``--config`` with the file it resolves to.

    Raises:
        UserError: a value is neither a file nor a built-in config.
    """
    resolved: list[str] = []
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS and equals:
            resolved.append(f"{flag}={config_file(value)}")
        elif i and arguments[i - 1] in _FLAGS:
            resolved.append(str(config_file(argument)))
        else:
            resolved.append(argument)
    return resolved


def located(text: str, folder: Path, start: Path) -> str:
    """Make each path in a config absolute that exists only relative to the config file.

    A value is such a path if it names a file or folder there and neither in the working directory. All other values
    stay; text that is not YAML is returned unchanged.

    Args:
        text: text of the config.
        folder: folder of the config file.
        start: working directory of the command.
    """
    if folder.absolute() == start.absolute():
        return text

    def moves(value: str, name: str) -> bool:
        path_like = "/" in value or Path(value).suffix or name in PATH_SETTINGS
        return bool(value and path_like) and not (start / value).exists() and (folder / value).exists()

    if not any(moves(value, name) for value, name in _named(text)):
        return text
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    for node, name in _texts(root):
        if moves(node.value, name):
            node.value = str((folder / node.value).absolute())
            node.style = '"'
    return yaml.serialize(root, Dumper=yaml.SafeDumper, width=1 << 20)


@functools.lru_cache(maxsize=16)
def _named(text: str) -> tuple[tuple[str, str], ...]:
    """Return every string of a config with its setting; cached, since a command asks five times per file."""
    try:
        root = compose_yaml(text)
    except yaml.YAMLError:
        return ()  # reported by the parser, with the line
    if not isinstance(root, yaml.MappingNode):
        return ()
    return tuple((node.value, name) for node, name in _texts(root))


def _texts(root: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """Yield every string node below the sections with the setting it belongs to."""
    for key, value in root.value:
        if str(key.value).partition(".")[0] in _SECTIONS:
            yield from _below(value, str(key.value).rpartition(".")[2])


def _below(node: yaml.Node, name: str) -> Iterator[tuple[yaml.ScalarNode, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _below(value, str(key.value))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _below(value, name)
    elif isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        yield node, name
