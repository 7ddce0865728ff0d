"""Search for the wrong setting of a config, by comparing it with the signatures that it configures.

Used only after the parser has refused a config, because the parser's own message speaks of its internals.
"""

from __future__ import annotations

import collections.abc
import difflib
import importlib
import inspect
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.commands.fit.arguments import Setting, shown
from gspo_lightning.commands.fit.foreign import foreign, translation
from gspo_lightning.commands.fit.hints import (
    WORDS,
    base_of,
    bases,
    fits,
    in_words,
    is_many,
    leaves,
    members,
    parameters,
    plain,
    takes_all,
    word,
)
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError, did_you_mean, is_own, nearest
from gspo_lightning.core.parsing import load_yaml

_GIVEN = ("params", "optimizer")
"""Parameters that are not settings: the parameters of an optimizer and the optimizer of a scheduler."""
_PRECISIONS = {
    "32-true": ("fp32", "float32", "f32", "single"),
    "bf16-mixed": ("bfloat16", "bfloat16-mixed"),
    "16-mixed": ("fp16", "float16", "f16", "half", "fp16-mixed", "float16-mixed"),
}
"""Precision that works here -> what other libraries call it."""
_MANY = 25
_IS_NULL = "is null"


class Fields:
    """Valid settings of a config.

    Args:
        sections: top-level name -> type: a class whose parameters are settings, or the type of a value.
        defaults: field -> default class.
    """

    def __init__(self, sections: Mapping[str, Any], defaults: Mapping[str, type[Any]]) -> None:
        self.sections = dict(sections)
        self.defaults = dict(defaults)
        self.classes: dict[str, type[Any]] = {}
        """Field -> class chosen by the settings read so far."""

    def fault(self, settings: Sequence[Setting]) -> UserError | None:
        """Return the error of the first wrong setting; None if no setting is known to be wrong."""
        self.classes = dict(self.defaults)
        for setting in settings:
            try:
                self._group("", self.sections, setting.keys, setting.value, setting.flag)
            except UserError as error:
                return error
        return None

    def refuse_nulls(self, settings: Sequence[Setting]) -> None:
        """Refuse null in a config file where a setting has no such value; the parser checks the type of no null there.

        Raises:
            UserError: names the first one.
        """
        contents = [_nulls(setting.value) for setting in settings if not setting.flag]
        files = [Setting((), content, flag=False) for content in contents if content]
        fault = self.fault(files) if files else None
        if fault is not None and fault.problem.startswith(_IS_NULL):
            raise fault

    def place_of(self, name: str) -> str | None:
        """Return the field that holds a class of this name; call :meth:`fault` first."""
        return next((field for field, cls in self.classes.items() if cls.__name__ == name), None)

    def _group(self, path: str, hints: Mapping[str, Any], keys: Sequence[str], value: Any, flag: bool) -> None:
        """Check sibling settings: a section, the parameters of a class, or the fields of a dataclass."""
        if not keys:
            if value is None or isinstance(value, str):
                return
            if not isinstance(value, Mapping):
                raise UserError(path.rstrip("."), f"is {shown(value)}; it must be a mapping")
            for key, inner in value.items():
                self._group(path, hints, [str(key)], inner, flag)
            return
        key = keys[0].removesuffix("+")
        if key not in hints:
            raise self._unknown(path, key, hints, ".".join(keys))
        self._value(path + key, hints[key], keys[1:], value, flag)

    def _value(self, path: str, hint: Any, keys: Sequence[str], value: Any, flag: bool) -> None:
        if value is None and not flag and path not in self.sections and not {Any, type(None)} & set(members(hint)):
            raise UserError(path, f"{_IS_NULL}; it must be {in_words(hint)}", fix="leave it out to keep its default")
        if path in self.sections and isinstance(hint, type) and hint not in WORDS:
            self._group(f"{path}.", parameters(hint), keys, value, flag)
            return
        loaded = _loaded(value) if flag else value
        groups = [member for member in members(hint) if plain(member)]
        if groups:
            self._group(f"{path}.", parameters(groups[0]), keys, loaded, flag)
            return
        member_bases = [base_of(member) for member in members(hint)]
        base = next((member_base for member_base in member_bases if member_base is not None), None)
        chooses = isinstance(loaded, Mapping) and "class_path" not in loaded and not keys
        for member in members(hint):
            arguments = typing.get_args(member)
            if base is not None and typing.get_origin(member) is dict and not chooses:
                continue  # a component, or a choice among several
            if is_many(member) and arguments and _has_settings(arguments[-1]):
                self._many(path, member, arguments[-1], keys, loaded, flag, hint)
                return
        is_value = not keys and not isinstance(loaded, Mapping) and any(fits(leaf, loaded) for leaf in leaves(hint))
        if base is not None and not is_value:
            self._component(path, base, keys, loaded, flag)
            return
        if not keys and not (fits(hint, loaded) or fits(hint, value)):
            if path == "trainer.precision":  # Lightning's list has several that are refused here
                raise self._no_precision(loaded)
            raise UserError(path, f"is {shown(loaded)}; it must be {in_words(hint)}")

    def _no_precision(self, value: object) -> UserError:
        given = str(value).lower()
        usable = list(_PRECISIONS)
        if "objective" not in parameters(self.sections["model"]):  # a reward model, whose loss is not scaled
            usable.remove("16-mixed")
        near = next((ours for ours in usable if given in _PRECISIONS[ours]), None) or nearest(given, usable)
        problem = f"is {shown(value)}; it must be {', '.join(usable[:-1])} or {usable[-1]}"
        scaled = ", on a GPU" if "16-mixed" in usable else ""
        return UserError("trainer.precision", problem + scaled, fix=f"write {near or 'bf16-mixed'}")

    def _many(self, path: str, hint: Any, inner: Any, keys: Sequence[str], value: Any, flag: bool, whole: Any) -> None:
        """Check a list or mapping of components."""
        if typing.get_origin(hint) in (dict, collections.abc.Mapping):
            if keys:
                self._value(f"{path}.{keys[0]}", inner, keys[1:], value, flag)
            elif isinstance(value, Mapping):
                for name, item in value.items():
                    self._value(f"{path}.{name}", inner, (), item, False)
            elif value is not None:
                example = f"{path.rpartition('.')[2]}: {{name: {value if isinstance(value, str) else '...'}}}"
                raise UserError(path, f"is {shown(value)}; it must be a mapping of names", fix=f"write {example}")
            return
        if not keys and isinstance(value, list):
            for i, item in enumerate(value):
                self._value(f"{path}[{i}]", inner, (), item, False)
        elif base_of(inner) is None:
            if not fits(whole, value):
                raise UserError(path, f"is {shown(value)}; it must be {in_words(whole)}")
        elif keys or isinstance(value, Mapping) or not any(fits(leaf, value) for leaf in leaves(whole)):
            self._component(path, typing.cast(type[Any], base_of(inner)), keys, value, flag)

    def _component(self, path: str, base: type[Any], keys: Sequence[str], value: Any, flag: bool) -> None:
        """Check a component: its class name and its parameters."""
        if keys and keys[0] == "init_args" and len(keys) > 1:
            self._component(path, base, keys[1:], value, flag)
            return
        if not keys or keys[0] == "class_path":
            name = value.get("class_path") if isinstance(value, Mapping) else value
            if isinstance(name, str):
                self.classes[path] = _class(path, base, name)
            elif name is not None:
                raise UserError(path, f"is {shown(value)}; it must be the name of a {word(base)}")
            if not isinstance(value, Mapping):
                return
        cls = self.classes.get(path)
        hints = None
        if cls is not None and not takes_all(cls):
            hints = {name: hint for name, hint in parameters(cls).items() if name not in _GIVEN}
            if not is_own(cls):  # many classes have a default of None that their annotations do not have
                hints = {name: hint | None if isinstance(hint, type) else hint for name, hint in hints.items()}
        if keys:
            if hints is not None and keys[0] not in ("class_path", "dict_kwargs"):
                self._group(f"{path}.", hints, keys, value, flag)
            return
        beside = [key for key in value if key not in ("class_path", "init_args", "dict_kwargs")]
        if beside and ("class_path" in value or not path.endswith("]")):
            fix = f"write {path.rpartition('.')[2]}: {{class_path: ..., init_args: {{{beside[0]}: ...}}}}"
            raise UserError(f"{path}.{beside[0]}", "belongs in init_args, next to class_path", fix=fix)
        if hints is not None:
            self._group(f"{path}.init_args.", hints, (), value.get("init_args"), flag)

    def _unknown(self, path: str, key: str, siblings: Mapping[str, Any], written: str) -> UserError:
        field = f"{path}{key}"
        translated = foreign(f"{path}{written}")
        if translated is not None:
            problem, fix = translation(*translated)
            return UserError(field, problem, fix=fix)
        near = did_you_mean(key, siblings)
        if near.startswith("did you mean") and (path or key.lower() not in self._levels()):
            few = near if len(siblings) <= _MANY else near.partition("? ")[0] + "?"
            if difflib.SequenceMatcher(None, key, near.split()[3].rstrip("?")).ratio() > 0.6 or not path:
                return UserError(field, f"is not a setting; {few}", fix=f"write {path}{near.split()[3].rstrip('?')}")
        levels = self._levels()
        there = difflib.get_close_matches(key.lower(), list(levels), n=1, cutoff=0.75)
        if there:
            place = levels[there[0]]
            return UserError(field, f"is not a setting; did you mean {place}?", fix=f"write {place}")
        names = near.rpartition("known: ")[2] if len(siblings) <= _MANY else "see gspo fit --help"
        return UserError(field, f"is not a setting; known: {names}")

    def _levels(self) -> dict[str, str]:
        """Return the last part of every setting -> its full name."""
        levels: dict[str, str] = {}
        for section, hint in self.sections.items():
            if not isinstance(hint, type) or hint in WORDS:
                continue
            for name, inner in parameters(hint).items():
                levels.setdefault(name, f"{section}.{name}")
                for group in filter(plain, members(inner)):
                    for field in parameters(group):
                        levels.setdefault(field, f"{section}.{name}.{field}")
        for field, cls in self.classes.items():
            for name in parameters(cls):
                levels.setdefault(name, f"{field}.{name}")
        return levels


def _has_settings(hint: Any) -> bool:
    """True if a type has components, or dataclasses whose fields are settings."""
    return any(base_of(member) is not None or plain(member) for member in members(hint))


def _nulls(value: Any) -> Any:
    """Return the part of a config that holds nulls, with the names of its classes; empty if there is none.

    >>> _nulls({"a": 1, "b": {"c": None, "d": 2}, "e": {"class_path": "E", "init_args": {"f": None}}, "g": {"h": 1}})
    {'b': {'c': None}, 'e': {'class_path': 'E', 'init_args': {'f': None}}}
    """
    if not isinstance(value, Mapping):
        return {}
    content: dict[str, Any] = {}
    for key, part in value.items():
        nulls = None if part is None else _nulls(part)
        if nulls is None or nulls:
            content[key] = nulls
    return {"class_path": value["class_path"], **content} if content and "class_path" in value else content


def _loaded(text: object) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        return text


def _class(path: str, base: type[Any], name: str) -> type[Any]:
    """Return a class by its name or import path."""
    kind = next((kind for kind, kind_base in bases().items() if kind_base is base), None)
    if kind is not None:
        components = registry.components(kind)
        short = name.rpartition(".")[2]
        if name in components or (short in components and "." in name):
            return components[short]
        if "." not in name:
            raise UserError(path, f"{name!r} is not registered; {did_you_mean(name, components)}")
    module, _, last = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), last, None) if module else None
    except Exception:
        cls = None
    if isinstance(cls, type):
        return cls
    file = Path(f"{module.replace('.', '/')}.py")
    if file.is_file():
        raise UserError(path, f"{shown(name)} is in {file}, which is no plug-in", fix=f"add --plugins {file}")
    choices = (base, *registry.subclasses(base)) if not inspect.isabstract(base) else registry.subclasses(base)
    public = {cls.__name__: cls for cls in choices if not cls.__name__.startswith("_")}
    if name in public:
        return public[name]
    near = did_you_mean(last, public)
    hint = f"{near.partition('?')[0]}?" if near.startswith("did you mean") else "write its whole path: package.Class"
    raise UserError(path, f"{shown(name)} is no {word(base)} that can be found; {hint}")
