"""Arguments of a training command, read without a parser."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.commands.fit.configs import config_file, located
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_yaml


@dataclass(frozen=True)
class Setting:
    """One flag (``keys`` as written, ``value`` its text), or one config file (no keys, ``value`` its content)."""

    keys: tuple[str, ...]
    value: Any
    flag: bool = True


def values_of(arguments: Sequence[str], *flags: str) -> Iterator[str]:
    """Yield the values of flags, written as ``--flag value`` or ``--flag=value``."""
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in flags:
            if equals:
                yield value
            elif i + 1 < len(arguments):
                yield arguments[i + 1]


def config_files(arguments: Sequence[str]) -> list[Path]:
    """Return the files given by ``--config``, in order."""
    return [Path(value) for value in values_of(arguments, "--config", "-c")]


def plugin_paths(arguments: Sequence[str]) -> list[str]:
    """Return the plug-ins named by ``plugins:`` in config files and by ``--plugins``, without duplicates.

    Raises:
        UserError: a config file is missing or malformed.
    """
    paths: list[str] = []
    for file in config_files(arguments):
        content = _read_yaml(file)
        listed = content.get("plugins") or []
        paths += [listed] if isinstance(listed, str) else [str(path) for path in listed]
    for value in values_of(arguments, "--plugins", "--plugins+"):
        listed = _as_list(value)
        paths += [str(path) for path in listed] if isinstance(listed, list) else [value]
    return list(dict.fromkeys(paths))


def _as_list(value: str) -> Any:
    """Parse a YAML list (``[a.py, b.py]``); return any other text unchanged."""
    try:
        return load_yaml(value) if value.startswith("[") else value
    except yaml.YAMLError as error:
        raise UserError("--plugins", f"{value!r} is not a list", fix="write [a.py, b.py], or one path") from error


def _read_yaml(file: Path) -> dict[str, Any]:
    file = config_file(str(file))
    try:
        content = copy.deepcopy(_parsed(located(file.read_text(encoding="utf-8"), file.parent, Path.cwd())))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or "is not text"
        raise UserError(f"{file}{line}", f"is not YAML: {problem}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(str(file), f"holds a {type(content).__name__}; a config is a mapping such as 'data: ...'")
    return content


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    """Parse YAML, cached: each config is read four times before jsonargparse reads it, and parsing is slow."""
    return load_yaml(text)


def settings(arguments: Sequence[str]) -> list[Setting]:
    """Return every config file and flag of a training command, in order; ``arguments`` exclude the command's name.

    Raises:
        UserError: an argument belongs to no flag, a flag has no value, or a config file is missing or malformed.
    """
    listed: list[Setting] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            raise UserError("arguments", f"{shown(flag)} belongs to no flag", fix="write --section.name value")
        if flag in ("-h", "--help") or flag.startswith("--print_config"):
            continue
        if not equals:
            if not rest or (rest[0].startswith("--") and rest[0] != "--"):
                raise UserError(flag.lstrip("-"), "has no value", fix=f"write {flag}=<value>")
            value = rest.pop(0)
        if flag in ("-c", "--config"):
            listed.append(Setting((), _read_yaml(Path(value)), flag=False))
        else:
            listed.append(Setting(tuple(flag.lstrip("-").split(".")), value))
    return listed


def shown(value: object) -> str:
    """Format a value for a message, cut to 60 characters."""
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text
