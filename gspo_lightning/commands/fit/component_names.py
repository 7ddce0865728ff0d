"""Refuse components that nothing defines, before slow imports: names are read from the source files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gspo_lightning.commands.fit.arguments import Setting
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.parsing import load_yaml

_PACKAGE = Path(__file__).parents[2]
_CLASS = re.compile(r"^class (\w+)\(([^)]+)\):(.*(?:\n(?:[ \t#].*)?)*)", re.MULTILINE)
_METHOD = re.compile(r"^    (?:async )?(?:def )?(\w+)", re.MULTILINE)
_ABSTRACT = re.compile(r"^    @abstractmethod\n(?:    @.*\n)*    (?:async )?def (\w+)", re.MULTILINE)
_KINDS = {
    "model.objective": "objectives",
    "model.old_policy": "old_policies",
    "data.rollouts": "rollouts",
    "data.advantages": "advantages",
}
"""Field that takes one component -> its kind."""
_PROMPTS = ("data.train", "data.val", "data.test", "data.predict")
"""Fields that take the class of a prompt set only as ``class_path``; a text is a file there, or a hub id."""
_REWARDS = "data.rewards"


def check_components(settings: Sequence[Setting], plugins: Sequence[str]) -> None:
    """Check that the components that settings name exist: in this package, or defined already.

    With plug-ins nothing is checked here: importing them puts their folder on the path of modules, where optional
    packages of torch and transformers would then be looked for.

    Raises:
        UserError: one does not exist.
    """
    missing = []
    for field, kind, name in _named(settings):
        if name not in component_names(kind):
            missing.append((field, kind, name))
    if not missing or plugins:
        return
    for field, kind, name in missing:
        names = sorted({*component_names(kind), *registry.defined(kind)})
        if name not in names:
            raise UserError(field, f"{name!r} is not registered; {did_you_mean(name, names)}")


class _Class(NamedTuple):
    """A class of the package, as its source describes it."""

    name: str
    bases: tuple[str, ...]
    methods: frozenset[str]
    abstract: frozenset[str]
    """Those of the methods that it leaves to subclasses."""


@cache
def component_names(kind: str) -> tuple[str, ...]:
    """Return the names of this package's components of a kind, sorted, without importing them."""
    root = registry.KINDS[kind][1]
    classes = _classes()

    def is_derived(cls: _Class) -> bool:
        return any(base == root or any(map(is_derived, classes.get(base, ()))) for base in cls.bases)

    def abstract_methods(cls: _Class) -> frozenset[str]:
        methods = set(cls.abstract)
        for base in cls.bases:
            for base_class in classes.get(base, ()):
                methods |= abstract_methods(base_class)
        return frozenset(methods - (cls.methods - cls.abstract))

    names = []
    for namesakes in classes.values():
        for cls in namesakes:
            if not cls.name.startswith("_") and is_derived(cls) and not abstract_methods(cls):
                names.append(cls.name)
    return tuple(sorted(names))


@cache
def _classes() -> dict[str, list[_Class]]:
    """Return the classes of the package that have a base, by name."""
    classes: dict[str, list[_Class]] = defaultdict(list)
    for file in sorted(_PACKAGE.rglob("*.py")):
        for name, bases, body in _CLASS.findall(file.read_text(encoding="utf-8")):
            base_names = tuple(base.partition("[")[0].strip() for base in bases.split(","))
            methods = {method.removesuffix("_batch") for method in _METHOD.findall(body)}  # one of them will do
            classes[name].append(_Class(name, base_names, frozenset(methods), frozenset(_ABSTRACT.findall(body))))
    return dict(classes)


def _named(settings: Sequence[Setting]) -> list[tuple[str, str, str]]:
    """Return field, kind and name of the components that are named without a path, as the last setting gives them."""
    components: dict[str, tuple[str, str]] = {}
    values = [field_and_value for setting in settings for field_and_value in _fields(setting)]
    for field, value in values:
        if field == _REWARDS:  # a whole mapping replaces the rewards before it
            components = {name: kept for name, kept in components.items() if not name.startswith(f"{_REWARDS}.")}
            continue
        kind = "rewards" if field.startswith(f"{_REWARDS}.") else _KINDS.get(field, "prompts")
        name = None
        if isinstance(value, Mapping):
            name = value.get("class_path")
        elif kind != "prompts":
            name = value
        if isinstance(name, str) and name.isidentifier():
            components[field] = kind, name
        elif field in components and name is not None:
            del components[field]
    return [(field, kind, name) for field, (kind, name) in components.items()]


def _fields(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Yield the fields of components in a setting, with their values."""
    if not setting.keys:
        for section in ("model", "data"):
            content = setting.value.get(section)
            if isinstance(content, Mapping):
                for name, value in content.items():
                    yield from _field(f"{section}.{name}", value)
    elif setting.keys[-1] == "class_path":
        yield from _field(".".join(setting.keys[:-1]), {"class_path": setting.value})
    else:
        yield from _field(".".join(setting.keys), _loaded(setting.value))


def _field(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    if field == _REWARDS:
        yield field, None
        if isinstance(value, Mapping):
            for name, reward in value.items():
                yield f"{field}.{name}", reward
    elif field in _KINDS or field in _PROMPTS or re.fullmatch(r"data\.rewards\.[^.]+", field):
        yield field, value


def _loaded(text: Any) -> Any:
    try:
        return load_yaml(text) if isinstance(text, str) else text
    except yaml.YAMLError:
        return text
