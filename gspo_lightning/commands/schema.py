"""``gspo schema``: the JSON Schema of the YAML, for editors that complete and check it.

It is built from what messages about wrong settings are built from: the signatures of trainer, model, data and of all
registered components. Types come from annotations, descriptions and ranges (``>= 1``, ``[0, 1)``, ``1 to 50``) from
docstrings, so that there is no second list of settings. It uses what drafts 7 to 2020-12 of JSON Schema share.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core import registry
from gspo_lightning.core.escape import say
from gspo_lightning.core.signatures import settings_class

Schema = dict[str, Any]
COMMANDS = ("fit", "fit-reward")
FOLDER = Path(__file__).parents[1] / "configs" / "schema"
"""Folder of the generated files: beside the configs that point to them, and in the wheel."""
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
_DOTTED = {"type": "string", "pattern": r"\."}
"""Name of a class that is not registered here: a dotted path."""
_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)"
_BOUND = re.compile(rf"(?:^|, )(>=|>) {_NUMBER}(?=[,;.:]?(?:\s|$))")
_INTERVAL = re.compile(rf"(?:^|, |in )([\[(]){_NUMBER}, {_NUMBER}([\])])")
_FROM_TO = re.compile(rf"(?:^|, ){_NUMBER} to {_NUMBER}(?=[,;.:]?(?:\s|$))")
_ABOUT = 400
"""Most characters of a description: an editor shows it beside the line."""


def main(argv: Sequence[str]) -> int:
    """Print the JSON Schema of a command's config.

    Raises:
        UserError: a plug-in cannot be imported.
    """
    parser = argparse.ArgumentParser("gspo schema", description="Print the JSON Schema of the YAML, for editors.")
    parser.add_argument("command", nargs="?", choices=COMMANDS, default="fit", help="whose config (default: fit)")
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules to import first")
    options = parser.parse_args(list(argv))
    registry.import_plugins(options.plugins)
    say(text_of(options.command).removesuffix("\n"))
    return 0


def text_of(command: str) -> str:
    """Return the JSON Schema of a command's config as text.

    Args:
        command: one of ``COMMANDS``.
    """
    from gspo_lightning.commands.fit.explain import training_fields
    from gspo_lightning.commands.fit.help import GROUPS
    from gspo_lightning.commands.fit_reward.cli import fields

    about = {name: text for group in GROUPS.values() for name, text in group.items()}
    found = training_fields() if command == "fit" else fields()
    return json.dumps(_Builder().config(f"gspo {command}", found.sections, about), indent=1, ensure_ascii=False) + "\n"


def bounds(description: str) -> Schema:
    """Return the range that a description states, as keywords of JSON Schema.

    >>> bounds("share of rows, in (0, 1]."), bounds("Rank, >= 1."), bounds("digits, 1 to 50."), bounds("a > b")
    ({'exclusiveMinimum': 0, 'maximum': 1}, {'minimum': 1}, {'minimum': 1, 'maximum': 50}, {})
    """
    if (found := _INTERVAL.search(description)) is not None:
        left, low, high, right = found.groups()
        return {
            "minimum" if left == "[" else "exclusiveMinimum": _number(low),
            "maximum" if right == "]" else "exclusiveMaximum": _number(high),
        }
    if (found := _BOUND.search(description)) is not None:
        return {"minimum" if found.group(1) == ">=" else "exclusiveMinimum": _number(found.group(2))}
    if (found := _FROM_TO.search(description)) is not None:
        return {"minimum": _number(found.group(1)), "maximum": _number(found.group(2))}
    return {}


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value == int(value) else value


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the description of every constructor parameter, from the docstrings of the class and its bases."""
    from docstring_parser import parse_from_object

    found: dict[str, str] = {}
    declared = settings_class(cls)
    bases = declared.__mro__[:-1] if declared is not None else ()
    for one in (*reversed(bases), *reversed(cls.__mro__[:-1])):
        for source in (one, one.__dict__.get("__init__")):
            try:
                parsed = parse_from_object(source) if source is not None else None
            except (OSError, TypeError):  # a class without a source file
                continue
            for parameter in parsed.params if parsed is not None else ():
                found[parameter.arg_name] = " ".join((parameter.description or "").split())
    return {name: text for name, text in found.items() if text}


class _Builder:
    """Builder of one schema; classes are described once, under ``$defs``."""

    def __init__(self) -> None:
        from gspo_lightning.commands.fit.hints import bases

        self.defs: dict[str, Schema] = {}
        self.kinds = {base: kind for kind, base in bases().items()}

    def config(self, title: str, sections: Mapping[str, Any], about: Mapping[str, str]) -> Schema:
        """Return the schema of a whole config; no setting is required, so that overlays are valid alone."""
        properties: dict[str, Schema] = {}
        names: dict[str, Schema] = {}
        for name, hint in sections.items():
            if isinstance(hint, type) and hint not in _TYPES:
                properties[name] = self.group(hint)
                if inside := self.names_in(hint):
                    names[name] = {"properties": inside}
            else:
                text = about.get(name)
                properties[name] = self.value(hint, "") | ({"description": text} if text else {})
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": title,
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            # classes of plug-ins have names that are not known here
            "if": {"not": {"required": ["plugins"]}},
            "then": {"properties": names},
            "$defs": dict(sorted(self.defs.items())),
        }

    def group(self, cls: type[Any], skipped: Sequence[str] = ()) -> Schema:
        """Return the schema of the constructor parameters of a class."""
        from gspo_lightning.commands.fit.hints import parameters, takes_all

        texts = descriptions(cls)
        defaults = {p.name: p.default for p in registry.parameters(cls)}
        properties: dict[str, Schema] = {}
        for name, hint in parameters(cls).items():
            if name in skipped:
                continue
            text = texts.get(name, "")
            properties[name] = self.value(hint, text)
            if text:
                properties[name]["description"] = text if len(text) <= _ABOUT else f"{text[: _ABOUT - 1]}…"
            default = defaults[name]
            if default is not inspect.Parameter.empty and isinstance(default, bool | int | float | str):
                properties[name]["default"] = default
        return {"type": "object", "additionalProperties": takes_all(cls), "properties": properties}

    def value(self, hint: Any, text: str) -> Schema:
        """Return the schema of a value of a type, in the range that its description states."""
        from gspo_lightning.commands.fit.hints import members

        choices: list[Schema] = []
        for one in members(hint):
            choice = self.one(one, text)
            if not choice:
                return {}
            if choice not in choices:
                choices.append(choice)
        simple = [c["type"] for c in choices if c.keys() == {"type"} and isinstance(c["type"], str)]
        if len(simple) > 1:
            choices = [{"type": simple}, *(c for c in choices if c.keys() != {"type"})]
        return dict(choices[0]) if len(choices) == 1 else {"anyOf": choices}

    def one(self, hint: Any, text: str) -> Schema:
        """Return the schema of one alternative of a type; {} if any value may be right."""
        from gspo_lightning.commands.fit.hints import base_of, is_many, plain

        origin, inside = typing.get_origin(hint), typing.get_args(hint)
        if hint in (int, float):
            return {"type": _TYPES[hint], **bounds(text)}
        if hint in _TYPES:
            return {"type": _TYPES[hint]}
        if origin is typing.Literal:
            return {"enum": list(inside)}
        if plain(hint):
            return self.named(hint.__name__, lambda: self.group(hint))
        if (base := base_of(hint)) is not None:
            return self.component(base)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.value(inside[-1], "")}
        if hint in (dict, list):
            return {"type": "object" if hint is dict else "array"}
        if is_many(hint) and inside:
            items = [one for one in inside if one is not Ellipsis]
            return {"type": "array", "items": self.value(typing.Union[tuple(items)], "")}  # noqa: UP007 (a tuple)
        if isinstance(hint, type) and issubclass(hint, Path):
            return {"type": "string"}
        return {}

    def component(self, base: type[Any]) -> Schema:
        """Return the schema of a component: its name, or ``class_path`` with ``init_args``."""
        kind = self.kinds.get(base)
        if kind is not None:
            return self.named(kind, lambda: self.registered(kind))
        mapping: Schema = {
            "type": "object", "additionalProperties": False,
            "properties": {
                "class_path": {"type": "string"}, "init_args": {"type": "object"}, "dict_kwargs": {"type": "object"},
            },
        }  # fmt: skip
        return self.named("class", lambda: {"anyOf": [{"type": "string"}, mapping]})

    def registered(self, kind: str) -> Schema:
        """Return the schema of a registered kind; ``init_args`` without a class are those of any class of the kind."""
        from gspo_lightning.commands.fit.hints import parameters

        known = registry.components(kind)
        rules: list[Schema] = []
        every: dict[str, Schema] = {}
        for name, cls in known.items():
            part = self.named(f"{kind}.{name}", lambda cls=cls: self.group(cls))  # type: ignore[misc]
            every |= {parameter: {} for parameter in parameters(cls)}
            chosen = {"properties": {"class_path": {"enum": _names(cls)}}, "required": ["class_path"]}
            rules.append({"if": chosen, "then": {"properties": {"init_args": part}}})
        free = {"properties": {"init_args": {"additionalProperties": False, "properties": every}}}
        rules.append({"if": {"not": {"required": ["class_path"]}}, "then": free})
        named = {"anyOf": [{"enum": list(known)}, {"type": "string"}]}
        mapping = {
            "type": "object", "additionalProperties": False,
            "properties": {"class_path": named, "init_args": {"type": "object"}, "dict_kwargs": {"type": "object"}},
            "allOf": rules,
        }  # fmt: skip
        return {"anyOf": [named, mapping]}

    def names_in(self, section: type[Any]) -> dict[str, Schema]:
        """Return, for settings of a section that hold components, that their classes are registered."""
        from gspo_lightning.commands.fit.hints import parameters

        found = {name: self.names(hint) for name, hint in parameters(section).items()}
        return {name: schema for name, schema in found.items() if schema}

    def names(self, hint: Any) -> Schema:
        """Return the part of :meth:`names_in` for one type; {} if it holds no component, or any text is right."""
        from gspo_lightning.commands.fit.hints import members

        choices = list(members(hint))
        kinds = [kind for one in choices if (kind := self.kinds.get(one)) is not None]
        if kinds and str not in choices:
            return self.listed(kinds[0])
        for one in choices:
            if (inside := typing.get_args(one)) and (part := self.names(inside[-1])):
                return {"additionalProperties" if typing.get_origin(one) in (dict, Mapping) else "items": part}
        return {}

    def listed(self, kind: str) -> Schema:
        """Return the schema of a component whose class is registered, or has a dotted path."""
        name = {"anyOf": [{"enum": list(registry.components(kind))}, _DOTTED]}
        by_name = {"if": {"type": "string"}, "then": name, "else": {"properties": {"class_path": name}}}
        return self.named(f"names.{kind}", lambda: by_name)

    def named(self, name: str, make: typing.Callable[[], Schema]) -> Schema:
        """Return a reference to a definition, made once; a class may hold others of its kind."""
        if name not in self.defs:
            self.defs[name] = {}
            self.defs[name].update(make())
        return {"$ref": f"#/$defs/{name}"}


def _names(cls: type[Any]) -> list[str]:
    """Return the names under which YAML can choose a class: short, as exported by its package, and as defined."""
    exported = [
        f"{name}.{cls.__name__}"
        for name in _parents(cls.__module__)
        if getattr(sys.modules.get(name), cls.__name__, None) is cls
    ]
    return list(dict.fromkeys([cls.__name__, *exported, f"{cls.__module__}.{cls.__qualname__}"]))


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
