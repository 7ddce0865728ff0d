"""Type hints of settings: the values they allow, and their names in messages."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from gspo_lightning.core import registry
from gspo_lightning.core.signatures import settings_class

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
"""Type of a plain value -> its name in messages."""


def members(hint: Any) -> Iterator[Any]:
    """Yield the alternatives of a union type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from members(member)
    elif typing.get_origin(hint) is typing.Annotated:
        yield from members(typing.get_args(hint)[0])
    else:
        yield hint


def leaves(hint: Any) -> list[Any]:
    """Return the alternatives of a type that are not components."""
    return [member for member in members(hint) if base_of(member) is None]


def is_many(hint: Any) -> bool:
    """True if the type is a list, a mapping or another collection."""
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and origin is not str


def plain(cls: Any) -> bool:
    """True for a dataclass that is not a component, so that its fields are settings."""
    fields = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    return fields and not any(issubclass(cls, base) for base in bases().values())


def bases() -> dict[str, type[Any]]:
    """Return kind of component -> base class."""
    return {kind: registry.base_class(kind) for kind in registry.KINDS}


def base_of(hint: Any) -> type[Any] | None:
    """Return the class whose subclasses a setting of this type accepts; None if the type is not a component."""
    if typing.get_origin(hint) is collections.abc.Callable:
        returned = typing.get_args(hint)[-1]  # of a function that makes a component, such as an optimizer
        hint = next(iter(members(returned)), None)
    if not isinstance(hint, type) or hint in WORDS or typing.get_origin(hint) is not None:
        return None
    component = hint.__module__.startswith(("gspo_lightning.", "lightning.", "torch.optim"))
    if not component or dataclasses.is_dataclass(hint):
        return hint if hint in bases().values() else None
    return hint


def word(base: type[Any]) -> str:
    """Return the name of a class in messages."""
    return base.__name__.removeprefix("_").lower()


def parameters(cls: type[Any]) -> dict[str, Any]:
    """Return name -> type of a class's constructor parameters."""
    hints: dict[str, Any] = {}
    declared = settings_class(cls)
    bases_of_settings = declared.__mro__ if declared is not None else ()
    for base in (*bases_of_settings, *reversed(cls.__mro__)):
        for source in (base, base.__dict__.get("__init__")):
            if source is None:
                continue
            try:
                hints |= typing.get_type_hints(source)
            except Exception:  # a name that is imported for type checkers only
                hints |= dict.fromkeys(getattr(source, "__annotations__", {}), Any)
    return {parameter.name: hints.get(parameter.name, Any) for parameter in registry.parameters(cls)}


def takes_all(cls: type[Any]) -> bool:
    """True if the class accepts arbitrary keyword arguments."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


def fits(hint: Any, value: Any) -> bool:
    """True if a value may be of a type, or if that cannot be decided."""
    return any(_fits_one(member, value) for member in members(hint))


def _fits_one(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is float:
        return _is_number(value)
    if hint in (int, bool, str, type(None)):
        return type(value) is hint
    if origin is typing.Literal:
        return value in arguments
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, Mapping) and all(fits(arguments[-1], item) for item in value.values())
    if is_many(hint):
        if not arguments:
            return True
        return isinstance(value, list | tuple) and all(fits(arguments[0], item) for item in value)
    return getattr(hint, "__name__", "") != "Tensor"


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)


def in_words(hint: Any) -> str:
    """Describe the allowed values of a type, for messages."""
    names: list[str] = []
    literals: list[str] = []
    for member in members(hint):
        if typing.get_origin(member) is typing.Literal:
            literals += map(str, typing.get_args(member))
    if literals:
        names.append(f"one of {', '.join(dict.fromkeys(literals))}")
    for member in members(hint):
        origin = typing.get_origin(member)
        if origin is typing.Literal:
            continue
        if origin in (dict, collections.abc.Mapping):
            names.append("a mapping")
        elif is_many(member):
            names.append("a list")
        elif member in WORDS:
            names.append(WORDS[member])
        else:
            component = member if isinstance(member, type) else base_of(member)
            noun = word(component) if component is not None else ""
            names += [f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"] if noun else []
    return " or ".join(dict.fromkeys(names)) or "something else"
