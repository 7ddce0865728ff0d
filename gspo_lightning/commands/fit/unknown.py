"""Refuse unknown settings, all in one message and before slow imports.

The names of all settings are parsed from the source files without importing them, which takes milliseconds.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from gspo_lightning.commands.fit.arguments import settings
from gspo_lightning.commands.fit.foreign import foreign, translation
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_yaml

TOP = (
    "seed_everything", "plugins", "allow_changed_config", "ckpt_path", "trainer", "model", "data", "weights_only",
    "return_predictions", "verbose",
)  # fmt: skip
"""Top-level settings of a config."""

_ROOT = Path(__file__).parents[2]
_CLASSES = {
    "model": (
        (_ROOT / "training" / "module.py", "GSPOModule"),
        (_ROOT / "policy" / "load" / "model_settings.py", "BaseModelSettings"),
        (_ROOT / "policy" / "load" / "model_settings.py", "ModelSettings"),
    ),
    "data": (
        (_ROOT / "training" / "data.py", "PromptDataModule"),
        (_ROOT / "loop" / "experience" / "settings.py", "SharedSettings"),
        (_ROOT / "loop" / "experience" / "settings.py", "ExperienceSettings"),
    ),
}
"""Section -> its class, and the dataclasses whose fields that takes as ``**kwargs``."""
_COMPUTED = ("shaping", "mask_padding")
"""Fields of these dataclasses that the constructor computes."""
_GROUPS = {
    "data.evaluation": (_ROOT / "training" / "evaluation" / "evaluation_settings.py", "Evaluation"),
    "model.lora": (_ROOT / "policy" / "adapters" / "lora.py", "LoRA"),
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
_PAGES = {"TRL": "docs/from_trl.md", "verl": "docs/from_verl.md"}
_OPTIONS = ("help", "print_", "config")
_FEW = 25
_HYDRA = re.compile(r"[+~]*[a-z_]+(\.[A-Za-z_0-9]+)+")
"""Name part of a Hydra override, as verl's scripts write it before ``=``."""
_OF_REWARD_MODELS = "model.center_rewards_coefficient"
"""Setting that every config saved by ``gspo fit-reward`` has, and no other command's config."""


@cache
def settings_of(section: str) -> tuple[str, ...]:
    """Return the settings of ``trainer``, ``model``, ``data`` or a group such as ``data.evaluation``; () if none.

    >>> settings_of("model")[:2], "max_epochs" in settings_of("trainer"), settings_of("data.evaluation")[:2]
    (('name_or_path', 'objective'), True, ('temperature', 'samples'))
    """
    if section == "trainer":
        spec = importlib.util.find_spec("lightning")
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        files = [Path(folder) / "pytorch" / "trainer" / "trainer.py" for folder in folders]
        return next((_parameters(file, "Trainer") for file in files if file.is_file()), ())
    if section in _GROUPS:
        return _parameters(*_GROUPS[section])
    names = [name for place in _CLASSES.get(section, ()) for name in _parameters(*place)]
    return tuple(dict.fromkeys(name for name in names if name not in _COMPUTED))


def _parameters(file: Path, name: str) -> tuple[str, ...]:
    """Return the constructor parameters of a class, or the fields of a dataclass."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return tuple(argument.arg for argument in arguments[1:])
    targets = [node.target for node in cls.body if isinstance(node, ast.AnnAssign)]
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


@cache
def whole_names() -> dict[str, str]:
    """Return the last part of a setting -> its full name; on a tie, the setting nearest to the top level."""
    names: dict[str, str] = {}
    for section in ("data", "model", "trainer"):  # a later section wins
        names |= {name: f"{section}.{name}" for name in settings_of(section)}
    for group in _GROUPS:
        for name in settings_of(group):
            names.setdefault(name, f"{group}.{name}")
    return LEAVES | names | {name: name for name in TOP}


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Unknown setting as written, the framework it belongs to, and what to write instead."""

    key: str
    framework: str
    problem: str
    fix: str | None
    instead: str

    def line(self, width: int) -> str:
        return f"  {self.key.ljust(width)} -> {self.instead}"


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Refuse unknown settings in config files and flags, at the top level and in its sections.

    Settings within a component depend on its class; the parser checks them.

    Args:
        arguments: arguments of a training command, without its name.

    Raises:
        UserError: settings are of another framework, in the wrong section, or misspelt; one message lists them all.
    """
    unknown = list(dict.fromkeys(_unknown(arguments)))
    if not unknown:
        return
    if any(setting.key == _OF_REWARD_MODELS for setting in unknown):
        problem = f"is for a reward model: it sets {_OF_REWARD_MODELS}"
        raise UserError("config", problem, fix="give it to gspo fit-reward, or give a config of gspo fit here")
    if len(unknown) == 1:
        [setting] = unknown
        raise UserError(setting.key, setting.problem, fix=setting.fix)
    width = min(60, max(len(setting.key) for setting in unknown))
    lines = "\n".join(setting.line(width) for setting in unknown)
    frameworks = {setting.framework for setting in unknown}
    pages = [page for framework, page in _PAGES.items() if framework in frameworks]
    more = f" (all settings: {', '.join(pages)})" if pages else ""
    problem = f"{len(unknown)} settings have other names here, or none\n{lines}"
    raise UserError("config", problem, fix=f"rename them{more}")


def _unknown(arguments: Sequence[str]) -> Iterator[_Unknown]:
    hydra = [a for a in arguments if not a.startswith("-") and "=" in a and _is_foreign(a.partition("=")[0])]
    kept = [argument for argument in arguments if argument not in hydra]
    try:
        given = settings(kept)
    except UserError:  # an argument without a flag: reported by the parser, unless it can be translated
        given = []
    for setting in given:
        if setting.keys:
            key = ".".join(setting.keys)
            if not key.startswith(_OPTIONS):
                yield from _looked_at([(key, _mapping(setting.value))])
        else:
            yield from _looked_at(setting.value.items())
    for word in hydra:
        yield from _looked_at([(word.partition("=")[0], None)])


def _is_foreign(key: str) -> bool:
    return _HYDRA.fullmatch(key) is not None and foreign(key) is not None


def _mapping(value: object) -> object:
    if isinstance(value, str) and value.startswith("{"):
        try:
            return load_yaml(value)
        except yaml.YAMLError:
            return None
    return None


def _looked_at(items: Iterable[tuple[object, object]], path: str = "") -> Iterator[_Unknown]:
    """Yield the unknown ones among sibling settings; ``path`` is empty or ends in a dot."""
    for name, value in items:
        key = f"{path}{name}"
        first, *rest = key.removesuffix("+").split(".")
        if first not in TOP:
            yield from _leaves(key, value)
            continue
        for depth in range(len(rest)):
            section = ".".join([first, *rest[:depth]])
            names = settings_of(section)
            part = rest[depth].removesuffix("+")
            if names and part not in names and not (depth == 0 and part.startswith(_OPTIONS)):
                yield from _leaves(key, value)
                break
        else:
            section = ".".join([first, *rest])
            if isinstance(value, Mapping) and settings_of(section) and "class_path" not in value:
                yield from _looked_at(value.items(), f"{section}.")


def _leaves(key: str, value: object) -> Iterator[_Unknown]:
    """Yield the settings of a mapping under an unknown name, or the mapping itself if its own name can be explained."""
    if isinstance(value, Mapping) and value and key not in whole_names():
        near = difflib.get_close_matches(key, TOP, n=1, cutoff=0.75)
        if near:
            yield _misspelt(key, near[0], near[0])
            return
        deeper = [_judged(f"{key}.{name}") for name in value]
        if key.partition(".")[0] not in TOP or any(setting.framework for setting in deeper):
            for name, inner in value.items():
                yield from _leaves(f"{key}.{name}", inner)
            return
    yield _judged(key)


def _judged(key: str) -> _Unknown:
    section, _, last = key.removesuffix("+").rpartition(".")
    names = whole_names()
    translated = foreign(key)
    ours = last in names and section in ("", "trainer", "model", "data", *_GROUPS)
    if ours and (translated is None or translated[0] != "TRL" or (section and names[last] in translated[1].ours)):
        return _misspelt(key, names[last], names[last])
    if translated is not None:
        framework, word = translated
        return _Unknown(key, framework, *translation(framework, word), str(word))
    if section:
        siblings = {name: f"{section}.{name}" for name in settings_of(section)}
    else:
        siblings = {name: name for name in TOP}
    near_siblings = difflib.get_close_matches(last.lower(), siblings, n=1, cutoff=0.6)
    if near_siblings:
        return _misspelt(key, near_siblings[0], siblings[near_siblings[0]])
    near_names = difflib.get_close_matches(last.lower(), names, n=1, cutoff=0.75)
    if near_names:
        whole = names[near_names[0]]
        return _misspelt(key, whole, whole)
    valid = siblings or TOP
    listing = ", ".join(sorted(valid)) if len(valid) <= _FEW else "see gspo fit --help"
    return _Unknown(key, "", f"is not a setting; known: {listing}", None, f"no setting; known: {listing}")


def _misspelt(key: str, near: str, whole: str) -> _Unknown:
    return _Unknown(key, "", f"is not a setting; did you mean {near}?", f"write {whole}", whole)
