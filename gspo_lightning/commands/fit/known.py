"""Names of all settings, parsed from the source files without importing them, which takes milliseconds."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

__all__ = ["LEAVES", "TOP", "settings_of", "whole_names"]

TOP = (
    "seed_everything", "plugins", "allow_changed_config", "ckpt_path", "trainer", "model", "data", "weights_only",
    "return_predictions", "verbose",
)  # fmt: skip
"""Top-level settings of a config."""

_ROOT = Path(__file__).parents[2]
_CLASSES = {
    "model": (_ROOT / "training" / "module.py", "GSPOModule"),
    "data": (_ROOT / "training" / "data.py", "PromptDataModule"),
}
_GROUPS = {
    "data.evaluation": (_ROOT / "evaluation" / "settings.py", "Evaluation"),
    "model.lora": (_ROOT / "policy" / "lora.py", "LoRA"),
}
LEAVES = {
    "lr": "model.optimizer.init_args.lr",
    "weight_decay": "model.optimizer.init_args.weight_decay",
    "betas": "model.optimizer.init_args.betas",
    **{
        name: f"model.objective.init_args.{name}"
        for name in ("clip_low", "clip_high", "kl_coef", "kl_estimator", "entropy_coef", "dual_clip", "correction")
    },
}
"""Frequently used settings of components -> full name."""


@cache
def settings_of(section: str) -> tuple[str, ...]:
    """Return the settings of ``trainer``, ``model``, ``data`` or a group such as ``data.evaluation``; () if none.

    >>> settings_of("model")[:2], "max_epochs" in settings_of("trainer"), settings_of("data.evaluation")[:2]
    (('name_or_path', 'objective'), True, ('temperature', 'samples'))
    """
    if section == "trainer":
        spec = importlib.util.find_spec("lightning")
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        return _parameters(Path(folders[0]) / "pytorch" / "trainer" / "trainer.py", "Trainer") if folders else ()
    return _parameters(*(_CLASSES | _GROUPS)[section]) if section in _CLASSES | _GROUPS else ()


def _parameters(file: Path, name: str) -> tuple[str, ...]:
    """Return the constructor parameters of a class, or the fields of a dataclass."""
    if not file.is_file():
        return ()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return tuple(argument.arg for argument in arguments[1:])
    found = (node.target for node in cls.body if isinstance(node, ast.AnnAssign))
    return tuple(target.id for target in found if isinstance(target, ast.Name))


@cache
def whole_names() -> dict[str, str]:
    """Return the last part of a setting -> its full name; on a tie, the setting nearest to the top level."""
    found = {name: f"{section}.{name}" for section in ("data", "model", "trainer") for name in settings_of(section)}
    for group in _GROUPS:
        for name in settings_of(group):
            found.setdefault(name, f"{group}.{name}")
    return LEAVES | found | {name: name for name in TOP}
