"""YAML that somebody else may have written: never larger in memory than a little more than its text."""

from __future__ import annotations

from typing import Any

import yaml

from gspo_lightning.errors import first_line

__all__ = ["compose_yaml", "load_yaml"]

_ALIASED = 1_000_000
"""Characters that aliases of a YAML text may add: a text of a few lines can stand for more than a machine has."""
_DEEPEST = 100


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a YAML text; None where it is empty.

    Raises:
        yaml.YAMLError: it is none, is nested deeply or in itself, or its aliases stand for much more than is written.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and (size := _expanded(root, {}, 1)) > len(text) + _ALIASED:
            raise _unusable(f"its aliases (*name) stand for {size:,} characters", root)
    except RecursionError:
        raise _unusable("it is nested too deeply") from None
    return root


def load_yaml(text: str) -> Any:
    """What a YAML text says: plain values only.

    Raises:
        yaml.YAMLError: see :func:`compose_yaml`; or a value cannot be read (2024-13-41).
    """
    root = compose_yaml(text)
    loader = yaml.SafeLoader("")
    try:
        return None if root is None else loader.construct_document(root)
    except yaml.YAMLError:
        raise
    except (
        ValueError,
        ArithmeticError,
        AttributeError,
        LookupError,
    ) as error:  # a date that is none, a number of 5,000 digits
        raise _unusable(f"a value cannot be read: {first_line(error)}") from error
    finally:
        loader.dispose()


def _expanded(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Characters and nodes of what a node stands for, with all its aliases followed."""
    if known.get(id(node), 1) == 0:
        raise _unusable("an alias (*name) stands within what it stands for", node)
    if depth > _DEEPEST:
        raise _unusable("it is nested too deeply", node)
    if id(node) not in known:
        known[id(node)] = 0
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = len(inner) if isinstance(inner, str) else sum(_expanded(one, known, depth + 1) for one in inner)
        known[id(node)] = 1 + parts
    return known[id(node)]


def _unusable(problem: str, node: yaml.Node | None = None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=None if node is None else node.start_mark)
