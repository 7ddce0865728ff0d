"""Refuse files, models and components that are not there, before slow imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.commands.fit.arguments import Setting, plugin_paths, settings, values_of
from gspo_lightning.commands.fit.component_names import check_components
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError
from gspo_lightning.data.corpus.files import check_there, suffix_of
from gspo_lightning.policy.hub import check_path, check_reachable

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]*\w(?<!\.jsonl)(?<!\.json)(?<!\.csv)(?<!\.tsv)(?<!\.parquet)(?<!\.gz)")
_OLD_HUB_ID = re.compile(r"(?!tiny-)[\w.-]+")  # gpt2
_PROMPTS = tuple(("data", name) for name in ("train", "val", "test", "predict"))
_MODEL = ("model", "name_or_path")


def check_named(arguments: Sequence[str], *, hub: bool = True) -> None:
    """Check that the plug-ins, checkpoint, files, model and components of a command exist.

    Args:
        arguments: arguments of the command, without its name.
        hub: check also that hub ids are reachable; ``gspo plan`` reads no prompts and knows many models offline.

    Raises:
        UserError: something is missing, or a hub id is not reachable.
    """
    plugins = plugin_paths(arguments)
    for plugin in plugins:
        registry.check_plugin(plugin)
    for value in values_of(arguments, "--ckpt_path"):
        if value not in ("last", "null", "") and "://" not in value and not Path(value).exists():
            raise UserError("ckpt_path", f"{value!r} does not exist", fix="give a path, or last")
    listed = _settings(arguments)
    check_components(listed, plugins)
    prints = any(argument.startswith("--print_config") for argument in arguments)  # which opens nothing
    if not hub or prints:
        return
    sources = _sources(listed)
    for field, source in sources.items():  # all files before the first hub id, which takes a request
        if field == "model.name_or_path":
            check_path(field, source)
        elif suffix_of(source) and "://" not in source:
            check_there(source, field)
    for field, source in sources.items():
        name = source.partition(":")[0]
        is_model = field.startswith("model.")
        is_hub_id = _HUB_ID.fullmatch(name) or (is_model and _OLD_HUB_ID.fullmatch(name))
        if is_hub_id and not Path(name).exists():
            check_reachable(field, name, "model" if is_model else "dataset")


def _settings(arguments: Sequence[str]) -> list[Setting]:
    try:
        return settings(arguments)
    except UserError:  # the parser, which comes next, reports it too
        return []


def _sources(listed: Sequence[Setting]) -> dict[str, str]:
    """Return field -> text of the model and the sets of prompts, as the last setting gives them."""
    values: dict[str, Any] = {}
    for setting in listed:
        for section, name in (_MODEL, *_PROMPTS):
            content = setting.value.get(section) if not setting.keys else None
            if setting.keys == (section, name):
                values[f"{section}.{name}"] = setting.value
            elif isinstance(content, Mapping) and name in content:
                values[f"{section}.{name}"] = content[name]
    return {field: value for field, value in values.items() if isinstance(value, str)}
