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
    missing = [one for one in _named(settings) if one[2] not in component_names(one[1])]
    if not missing or plugins:
        return
    for field, kind, name in missing:
        known = sorted({*component_names(kind), *registry.defined(kind)})
        if name not in known:
            raise UserError(field, f"{name!r} is not registered; {did_you_mean(name, known)}")


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
    root, classes = registry.KINDS[kind][1], _classes()

    def derived(one: _Class) -> bool:
        return any(base == root or any(map(derived, classes.get(base, ()))) for base in one.bases)

    def left(one: _Class) -> frozenset[str]:
        inherited = (left(above) for base in one.bases for above in classes.get(base, ()))
        return one.abstract.union(*inherited) - (one.methods - one.abstract)

    own = (one for several in classes.values() for one in several if one.name[0] != "_" and derived(one))
    return tuple(sorted(one.name for one in own if not left(one)))


@cache
def _classes() -> dict[str, list[_Class]]:
    """Return the classes of the package that have a base, by name."""
    found: dict[str, list[_Class]] = defaultdict(list)
    for file in sorted(_PACKAGE.rglob("*.py")):
        for name, bases, body in _CLASS.findall(file.read_text(encoding="utf-8")):
            above = tuple(base.partition("[")[0].strip() for base in bases.split(","))
            methods = {method.removesuffix("_batch") for method in _METHOD.findall(body)}  # one of them will do
            found[name].append(_Class(name, above, frozenset(methods), frozenset(_ABSTRACT.findall(body))))
    return dict(found)


def _named(settings: Sequence[Setting]) -> list[tuple[str, str, str]]:
    """Return field, kind and name of the components that are named without a path, as the last setting gives them."""
    found: dict[str, tuple[str, str]] = {}
    for field, value in (one for setting in settings for one in _fields(setting)):
        if field == _REWARDS:
            found = {name: one for name, one in found.items() if not name.startswith(f"{_REWARDS}.")}
            continue
        kind = "rewards" if field.startswith(f"{_REWARDS}.") else _KINDS.get(field, "prompts")
        name = value.get("class_path") if isinstance(value, Mapping) else value if kind != "prompts" else None
        if isinstance(name, str) and name.isidentifier():
            found[field] = kind, name
        elif field in found and name is not None:
            del found[field]
    return [(field, kind, name) for field, (kind, name) in found.items()]


def _fields(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Yield the fields of components in a setting, with their values."""
    if not setting.keys:
        for section in ("model", "data"):
            inside = setting.value.get(section)
            for word, value in inside.items() if isinstance(inside, Mapping) else ():
                yield from _field(f"{section}.{word}", value)
        return
    keys = setting.keys[:-1] if setting.keys[-1] == "class_path" else setting.keys
    yield from _field(".".join(keys), {"class_path": setting.value} if keys != setting.keys else _loaded(setting.value))


def _field(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    if field == _REWARDS:
        yield field, None
        for name, one in value.items() if isinstance(value, Mapping) else ():
            yield f"{field}.{name}", one
    elif field in _KINDS or field in _PROMPTS or re.fullmatch(r"data\.rewards\.[^.]+", field):
        yield field, value


def _loaded(text: Any) -> Any:
    try:
        return load_yaml(text) if isinstance(text, str) else text
    except yaml.YAMLError:
        return text
