"""Lenient parsing of objects: JSON, Python dictionaries, trailing commas. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_DEPTH = 20
_ATTEMPTS = 2000
"""Opening braces tried as the start of an object."""
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[\"\\/bfnrt])|\\")
"""JSON's escapes; a backslash before any other character, as in LaTeX, stands for itself."""
_OTHER = re.compile(
    r"(?:true|false|null|True|False|None|-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,2})?)(?![\w.])"
)
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def parse_object(text: str, start: int = 0) -> tuple[dict[str, Any], int]:
    """Parse the object that begins at an opening brace; return it and the position behind it.

    Keys are compared in lower case and without outer spaces. A duplicate key is two guesses and makes the object
    invalid.

    >>> parse_object("{'A': 'knight', \\"b\\": [1, None,],} and more")
    ({'A': 'knight', 'b': [1.0, None]}, 33)

    Raises:
        ValueError: there is no valid object.
    """
    value, end = _value(text, start, 0)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value, end


def last_objects(text: str) -> Iterator[dict[str, Any]]:
    """Iterate over the outermost objects of a text, in order; invalid ones are skipped."""
    position = text.find("{")
    for _ in range(_ATTEMPTS):
        if position < 0:
            return
        try:
            value, end = parse_object(text, position)
        except ValueError:
            end = position + 1
        else:
            yield value
        position = text.find("{", end)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if text[at : at + 1] in ("{", "["):
        if depth == _DEPTH:
            raise ValueError("nested too deep")
        return _members(text, at + 1, depth + 1) if text[at] == "{" else _items(text, at + 1, depth + 1)
    if (string := _STRING.match(text, at)) is not None:
        return _unquoted(string[0]), string.end()
    if (other := _OTHER.match(text, at)) is not None:
        return _WORDS[other[0]] if other[0] in _WORDS else float(other[0]), other.end()
    raise ValueError("not a value")


def _members(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    keys: set[str] = set()
    while (at := _skip(text, at)) < len(text) and text[at] != "}":
        quoted = _STRING.match(text, at)
        colon = _skip(text, quoted.end()) if quoted is not None else len(text)
        if quoted is None or text[colon : colon + 1] != ":":
            raise ValueError("not a member")
        name = _unquoted(quoted[0])
        value, at = _value(text, colon + 1, depth)
        key = name.strip().lower()
        if key in keys:
            raise ValueError("a key twice")
        keys.add(key)
        members[name] = value
        at = _comma(text, at, "}")
    return members, _closed(text, at)


def _items(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while (at := _skip(text, at)) < len(text) and text[at] != "]":
        value, at = _value(text, at, depth)
        items.append(value)
        at = _comma(text, at, "]")
    return items, _closed(text, at)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # the pattern matches the empty text
    return space.end()


def _comma(text: str, at: int, closing: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return at + 1
    if text[at : at + 1] != closing:
        raise ValueError("no comma")
    return at


def _closed(text: str, at: int) -> int:
    if at >= len(text):
        raise ValueError("not closed")
    return at + 1


def _unquoted(quoted: str) -> str:
    if quoted[0] == "'":
        inner = quoted[1:-1].replace("\\'", "'")
        quoted = '"' + re.sub(r'(?<!\\)"', '\\"', inner) + '"'
    return str(json.loads(_ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\", quoted), strict=False))
