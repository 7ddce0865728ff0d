"""Refuse files, models and objectives that are not there, before slow imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning import registry
from gspo_lightning.commands.fit.arguments import plugin_paths, settings, values_of
from gspo_lightning.corpus.files import check_there, suffix_of
from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.policy.hub import check_path, check_reachable

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]*\w(?<!\.jsonl)(?<!\.json)(?<!\.csv)(?<!\.tsv)(?<!\.parquet)(?<!\.gz)")
_OLD_HUB_ID = re.compile(r"(?!tiny-)[\w.-]+")  # gpt2
_PROMPTS = tuple(("data", name) for name in ("train", "val", "test", "predict"))
_MODEL, _OBJECTIVE = ("model", "name_or_path"), ("model", "objective")
_OBJECTIVES = Path(__file__).parents[2] / "objectives"


def check_named(arguments: Sequence[str], *, hub: bool = True) -> None:
    """Check that the plug-ins, checkpoint, files, model and objective of a command exist.

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
    given = _given(arguments)
    if not plugins and "torch" not in sys.modules and not registry.entry_points():  # else the registry tells soon
        _check_objective(given.get("model.objective"))
    names = {field: value for field, value in given.items() if field != "model.objective"}
    printed = any(argument.startswith("--print_config") for argument in arguments)  # which opens nothing
    for field, name in names.items() if hub and not printed else ():
        if field == "model.name_or_path":
            check_path(field, name)
        elif suffix_of(name) and "://" not in name:
            check_there(name, field)
    for field, name in names.items() if hub and not printed else ():
        name = name.partition(":")[0]
        old = field.startswith("model.") and _OLD_HUB_ID.fullmatch(name)
        if (_HUB_ID.fullmatch(name) or old) and not Path(name).exists():
            check_reachable(field, name, "model" if field.startswith("model.") else "dataset")


def _given(arguments: Sequence[str]) -> dict[str, str]:
    """Return field -> text of the model, the objective and the sets of prompts, as the last argument gives them."""
    found: dict[str, Any] = {}
    try:
        listed = settings(arguments)
    except UserError:  # the parser, which comes next, reports it too
        return {}
    for setting in listed:
        for section, word in (_MODEL, _OBJECTIVE, *_PROMPTS):
            inside = setting.value.get(section) if not setting.keys else None
            if setting.keys == (section, word):
                found[f"{section}.{word}"] = setting.value
            elif isinstance(inside, Mapping) and word in inside:
                found[f"{section}.{word}"] = inside[word]
    return {field: value for field, value in found.items() if isinstance(value, str)}


def _check_objective(name: str | None) -> None:
    """Refuse an objective that no file of the package defines; a dotted path may lead anywhere."""
    if name is None or not name.isidentifier():
        return
    known = objective_names()
    if name not in known:
        raise UserError("model.objective", f"{name!r} is not registered; {did_you_mean(name, known)}")


def objective_names() -> list[str]:
    """Return the names of the objectives, parsed from their files without importing torch."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(_OBJECTIVES.rglob("*.py"))]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in classes}

    def derived(name: str) -> bool:
        return any(base == "Objective" or derived(base) for base in bases.get(name, ()))

    concrete = (node.name for node in classes if not node.name.startswith("_") and not _is_abstract(node))
    return sorted(name for name in concrete if derived(name))


def _is_abstract(node: ast.ClassDef) -> bool:
    marks = (m for f in node.body if isinstance(f, ast.FunctionDef) for m in f.decorator_list)
    return any(isinstance(mark, ast.Name) and mark.id == "abstractmethod" for mark in marks)
