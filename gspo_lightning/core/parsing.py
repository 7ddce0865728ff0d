"""Load untrusted JSON and YAML: a text nested too deeply is malformed, and aliases add little memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.core.errors import first_line

PATH_SETTINGS = (
    "plugins",
    "ckpt_path",
    "name_or_path",
    "start_from",
    "demonstrations",
    "train",
    "val",
    "test",
    "predict",
)
"""Settings of a config whose value may be a path without a slash or a suffix."""
_ALIASED = 1_000_000
"""Most characters that aliases may add: a YAML text of a few lines can expand beyond any memory."""
_DEEPEST = 100
_MOST_DIGITS = 50_000


class DeepJSONError(ValueError):
    """JSON has more levels than Python's parser can follow."""


def allow_long_integers() -> None:
    """Let this process read and write integers of up to 50,000 decimal digits; CPython's own limit is 4,300.

    That is the limit of LiveCodeBench's evaluation, whose tests have such integers. A higher limit stays.
    """
    if 0 < sys.get_int_max_str_digits() < _MOST_DIGITS:
        sys.set_int_max_str_digits(_MOST_DIGITS)


def load_json(text: str | bytes, **options: Any) -> Any:
    """Return the values of a JSON text; integers may have 50,000 digits (:func:`allow_long_integers`).

    Args:
        text: bytes are UTF-8, UTF-16 or UTF-32.
        options: of :func:`json.loads`.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number of too many digits.

    >>> load_json('{"a": [1]}')
    {'a': [1]}
    >>> load_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    gspo_lightning.core.parsing.DeepJSONError: it is nested too deeply
    """
    allow_long_integers()
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise DeepJSONError("it is nested too deeply") from None


def whole_number(value: Any, name: str = "the number") -> int:
    """Return a number of a JSON file, which may be anything, as an integer of at most 64 bits.

    Args:
        value: as :func:`load_json` gives it: 1e400 is infinity, and integers have any size.
        name: what the message calls it.

    Raises:
        ValueError: it is none.

    >>> whole_number(3), whole_number(3.0)
    (3, 3)
    >>> whole_number(float("inf"), "step")
    Traceback (most recent call last):
    ...
    ValueError: step is inf, not a whole number of at most 64 bits
    """
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if not whole or not -(2**63) <= value < 2**63:
        described = f"an integer of {value.bit_length()} bits" if type(value) is int else repr(value)[:60]
        raise ValueError(f"{name} is {described}, not a whole number of at most 64 bits")
    return int(value)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML text; None if it is empty.

    Raises:
        yaml.YAMLError: it is not YAML, is nested deeply or in itself, or its aliases expand to much more than its text.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        size = 0 if root is None else _expanded(root, {}, 1)
        if size > len(text) + _ALIASED:
            raise _unusable(f"its aliases (*name) stand for {size:,} characters", root)
    except RecursionError:
        raise _unusable("it is nested too deeply") from None
    return root


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError: see :func:`compose_yaml`; or a value cannot be read (2024-13-41).
    """
    allow_long_integers()
    root = compose_yaml(text)
    loader = yaml.SafeLoader("")
    try:
        return None if root is None else loader.construct_document(root)
    except yaml.YAMLError:
        raise
    except (ValueError, ArithmeticError, AttributeError, LookupError) as error:
        # an impossible date, a number of 60,000 digits
        raise _unusable(f"a value cannot be read: {first_line(error)}") from error
    finally:
        loader.dispose()


def read_table(file: Path) -> Any:
    """Read a table that ships with the package; libyaml's loader takes a tenth of the time of Python's."""
    return yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _expanded(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """Count the characters and nodes of a node with all its aliases expanded.

    Args:
        node: an alias is the very node that it stands for.
        sizes: counts by the ``id`` of nodes, so each node is counted once; 0 while it is being counted.
        depth: levels down to the node, from 1.
    """
    if sizes.get(id(node)) == 0:
        raise _unusable("an alias (*name) stands within what it stands for", node)
    if depth > _DEEPEST:
        raise _unusable("it is nested too deeply", node)
    if id(node) not in sizes:
        sizes[id(node)] = 0
        if isinstance(node.value, str):
            size = len(node.value)
        elif isinstance(node, yaml.MappingNode):
            size = sum(_expanded(child, sizes, depth + 1) for pair in node.value for child in pair)
        else:
            size = sum(_expanded(child, sizes, depth + 1) for child in node.value)
        sizes[id(node)] = 1 + size
    return sizes[id(node)]


def _unusable(problem: str, node: yaml.Node | None = None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=None if node is None else node.start_mark)
