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
    settings = training_fields() if command == "fit" else fields()
    schema = _Builder().config(f"gspo {command}", settings.sections, about)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def bounds(description: str) -> Schema:
    """Return the range that a description states, as keywords of JSON Schema.

    >>> bounds("share of rows, in (0, 1]."), bounds("Rank, >= 1."), bounds("digits, 1 to 50."), bounds("a > b")
    ({'exclusiveMinimum': 0, 'maximum': 1}, {'minimum': 1}, {'minimum': 1, 'maximum': 50}, {})
    """
    interval = _INTERVAL.search(description)
    if interval is not None:
        left, low, high, right = interval.groups()
        return {
            "minimum" if left == "[" else "exclusiveMinimum": _number(low),
            "maximum" if right == "]" else "exclusiveMaximum": _number(high),
        }
    bound = _BOUND.search(description)
    if bound is not None:
        sign, low = bound.groups()
        return {"minimum" if sign == ">=" else "exclusiveMinimum": _number(low)}
    from_to = _FROM_TO.search(description)
    if from_to is not None:
        low, high = from_to.groups()
        return {"minimum": _number(low), "maximum": _number(high)}
    return {}


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value == int(value) else value


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the description of every constructor parameter, from the docstrings of the class and its bases."""
    from docstring_parser import parse_from_object

    texts: dict[str, str] = {}
    declared = settings_class(cls)
    bases = declared.__mro__[:-1] if declared is not None else ()
    for base in (*reversed(bases), *reversed(cls.__mro__[:-1])):  # a subclass may describe a parameter anew
        for source in (base, base.__dict__.get("__init__")):
            if source is None:
                continue
            try:
                docstring = parse_from_object(source)
            except (OSError, TypeError):  # a class without a source file
                continue
            for parameter in docstring.params:
                texts[parameter.arg_name] = " ".join((parameter.description or "").split())
    return {name: text for name, text in texts.items() if text}


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
                components = self.names_in(hint)
                if components:
                    names[name] = {"properties": components}
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
        for member in members(hint):
            choice = self.one(member, text)
            if not choice:
                return {}
            if choice not in choices:
                choices.append(choice)
        types = [c["type"] for c in choices if c.keys() == {"type"} and isinstance(c["type"], str)]
        if len(types) > 1:  # one list of types instead of a schema for each
            choices = [{"type": types}, *(c for c in choices if c.keys() != {"type"})]
        return dict(choices[0]) if len(choices) == 1 else {"anyOf": choices}

    def one(self, hint: Any, text: str) -> Schema:
        """Return the schema of one alternative of a type; {} if any value may be right."""
        from gspo_lightning.commands.fit.hints import base_of, is_many, plain

        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)
        if hint in (int, float):
            return {"type": _TYPES[hint], **bounds(text)}
        if hint in _TYPES:
            return {"type": _TYPES[hint]}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if plain(hint):
            return self.named(hint.__name__, lambda: self.group(hint))
        base = base_of(hint)
        if base is not None:
            return self.component(base)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.value(arguments[-1], "")}
        if hint in (dict, list):
            return {"type": "object" if hint is dict else "array"}
        if is_many(hint) and arguments:
            items = [argument for argument in arguments if argument is not Ellipsis]
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

        components = registry.components(kind)
        rules: list[Schema] = []
        of_any_class: dict[str, Schema] = {}
        for name, cls in components.items():
            settings = self.named(f"{kind}.{name}", lambda cls=cls: self.group(cls))  # type: ignore[misc]
            of_any_class |= {parameter: {} for parameter in parameters(cls)}
            is_chosen = {"properties": {"class_path": {"enum": _names(cls)}}, "required": ["class_path"]}
            rules.append({"if": is_chosen, "then": {"properties": {"init_args": settings}}})
        free = {"properties": {"init_args": {"additionalProperties": False, "properties": of_any_class}}}
        rules.append({"if": {"not": {"required": ["class_path"]}}, "then": free})
        class_name = {"anyOf": [{"enum": list(components)}, {"type": "string"}]}
        mapping = {
            "type": "object", "additionalProperties": False,
            "properties": {
                "class_path": class_name, "init_args": {"type": "object"}, "dict_kwargs": {"type": "object"},
            },
            "allOf": rules,
        }  # fmt: skip
        return {"anyOf": [class_name, mapping]}

    def names_in(self, section: type[Any]) -> dict[str, Schema]:
        """Return, for settings of a section that hold components, that their classes are registered."""
        from gspo_lightning.commands.fit.hints import parameters

        schemas = {name: self.names(hint) for name, hint in parameters(section).items()}
        return {name: schema for name, schema in schemas.items() if schema}

    def names(self, hint: Any) -> Schema:
        """Return the part of :meth:`names_in` for one type; {} if it holds no component, or any text is right."""
        from gspo_lightning.commands.fit.hints import members

        choices = list(members(hint))
        kinds = [self.kinds[choice] for choice in choices if self.kinds.get(choice) is not None]
        if kinds and str not in choices:
            return self.listed(kinds[0])
        for choice in choices:
            arguments = typing.get_args(choice)
            items = self.names(arguments[-1]) if arguments else {}
            if items:
                is_mapping = typing.get_origin(choice) in (dict, Mapping)
                return {"additionalProperties" if is_mapping else "items": items}
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
    exported = []
    for package in _parents(cls.__module__):
        if getattr(sys.modules.get(package), cls.__name__, None) is cls:
            exported.append(f"{package}.{cls.__name__}")
    return list(dict.fromkeys([cls.__name__, *exported, f"{cls.__module__}.{cls.__qualname__}"]))


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
