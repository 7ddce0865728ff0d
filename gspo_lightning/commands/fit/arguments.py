"""The arguments of a training command, read before there is a parser: what they name has to be there."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning import registry
from gspo_lightning.commands.fit.beside import located
from gspo_lightning.commands.fit.configs import config_file
from gspo_lightning.corpus.yaml_text import load_yaml
from gspo_lightning.errors import UserError
from gspo_lightning.policy.hub import check_reachable

__all__ = ["Setting", "check_files", "config_files", "plugin_paths", "settings", "shown"]

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]*\w(?<!\.jsonl)(?<!\.json)(?<!\.csv)(?<!\.tsv)(?<!\.parquet)(?<!\.gz)")
_OLD_HUB_ID = re.compile(r"(?!tiny-)[\w.-]+")  # gpt2


@dataclass(frozen=True)
class Setting:
    """One flag (``keys`` as written, ``value`` its text), or a whole file (no keys)."""

    keys: tuple[str, ...]
    value: Any
    flag: bool = True


def _values(arguments: Sequence[str], *flags: str) -> Iterator[str]:
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in flags:
            if equals:
                yield value
            elif i + 1 < len(arguments):
                yield arguments[i + 1]


def config_files(arguments: Sequence[str]) -> list[Path]:
    """The files given by ``--config``, in order.

    Raises:
        UserError: one does not exist or is not YAML.
    """
    return [Path(value) for value in _values(arguments, "--config", "-c")]


def plugin_paths(arguments: Sequence[str]) -> list[str]:
    """Plug-ins named by ``plugins:`` in any config file and by ``--plugins``, without repetitions.

    Raises:
        UserError: a config file is missing or malformed.
    """
    found: list[str] = []
    for file in config_files(arguments):
        content = _read_yaml(file)
        listed = content.get("plugins") or []
        found += [listed] if isinstance(listed, str) else [str(p) for p in listed]
    for value in _values(arguments, "--plugins", "--plugins+"):
        listed = _as_list(value)
        found += [str(p) for p in listed] if isinstance(listed, list) else [value]
    return list(dict.fromkeys(found))


def check_files(arguments: Sequence[str], *, hub: bool = True) -> None:
    """Configs, plug-ins and the checkpoint that a command names are there; asked before anything slow is imported.

    Args:
        arguments: of the command.
        hub: whether ids of the hub have to be reachable, too; a plan reads no prompts and knows many models.

    Raises:
        UserError: one is not.
    """
    for plugin in plugin_paths(arguments):
        registry.check_plugin(plugin)
    for value in _values(arguments, "--ckpt_path"):
        if value not in ("last", "null", "") and "://" not in value and not Path(value).exists():
            raise UserError("ckpt_path", f"{value!r} does not exist", fix="give a path, or last")
    for field, name in _hub_ids(arguments).items() if hub else ():
        check_reachable(field, name, "model" if field.startswith("model.") else "dataset")


def _hub_ids(arguments: Sequence[str]) -> dict[str, str]:
    """Field -> what can only be an id of the hub: ``owner/name``, or a model of one word that is not built in."""
    fields = {("model", "name_or_path"), *(("data", word) for word in ("train", "val", "test", "predict"))}
    found: dict[str, Any] = {}
    try:
        given = settings(arguments)
    except UserError:  # the parser says so, too, and comes next
        return {}
    for setting in given:
        for section, word in fields:
            inside = setting.value.get(section) if not setting.keys else None
            if setting.keys == (section, word):
                found[f"{section}.{word}"] = setting.value
            elif isinstance(inside, dict) and word in inside:
                found[f"{section}.{word}"] = inside[word]
    names = {field: value.partition(":")[0] for field, value in found.items() if isinstance(value, str)}
    return {
        field: name
        for field, name in names.items()
        if (_HUB_ID.fullmatch(name) or (field.startswith("model.") and _OLD_HUB_ID.fullmatch(name)))
        and not Path(name).exists()
    }


def _as_list(value: str) -> Any:
    """A YAML list where it is written as one (``[a.py, b.py]``), else the text itself."""
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
    """A file is looked at four times before there is a parser; reading YAML is the slow part."""
    return load_yaml(text)


def settings(arguments: Sequence[str]) -> list[Setting]:
    """Every file and flag of a training command, in order; ``arguments`` are those after its name.

    Raises:
        UserError: a word that belongs to no flag, or a flag without a value.
    """
    found: list[Setting] = []
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
            found.append(Setting((), _read_yaml(Path(value)), flag=False))
        else:
            found.append(Setting(tuple(flag.lstrip("-").split(".")), value))
    return found


def shown(value: object) -> str:
    """A value as a message shows it: never more than a line of it."""
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text
