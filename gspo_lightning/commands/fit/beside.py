"""Relative paths in a config: resolved from the working directory, else from the folder of the YAML file."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import yaml

from gspo_lightning.corpus.yaml_text import compose_yaml

__all__ = ["located"]

_SECTIONS = ("plugins", "ckpt_path", "model", "data")
"""Top-level settings with paths to read; paths under ``trainer`` are for writing and stay as they are."""
_NAMES = ("plugins", "ckpt_path", "name_or_path", "demonstrations", "train", "val", "test", "predict")
"""Settings whose value may be a path without a slash or a suffix."""


def located(text: str, folder: Path, start: Path) -> str:
    """Make each path in a config absolute that exists only relative to the config file.

    A value is such a path if it names a file or folder there and neither in the working directory. All other values
    stay; text that is not YAML is returned unchanged.

    Args:
        text: text of the config.
        folder: folder of the config file.
        start: working directory of the command.
    """
    if folder.absolute() == start.absolute():
        return text

    def moves(value: str, name: str) -> bool:
        path_like = "/" in value or Path(value).suffix or name in _NAMES
        return bool(value and path_like) and not (start / value).exists() and (folder / value).exists()

    if not any(moves(value, name) for value, name in _named(text)):
        return text
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    for node, name in _texts(root):
        if moves(node.value, name):
            node.value, node.style = str((folder / node.value).absolute()), '"'
    return yaml.serialize(root, Dumper=yaml.SafeDumper, width=1 << 20)


@functools.lru_cache(maxsize=16)
def _named(text: str) -> tuple[tuple[str, str], ...]:
    """Return every string of a config with its setting; cached, since a command asks five times per file."""
    try:
        root = compose_yaml(text)
    except yaml.YAMLError:
        return ()  # reported by the parser, with the line
    return tuple((node.value, name) for node, name in _texts(root)) if isinstance(root, yaml.MappingNode) else ()


def _texts(root: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """Yield every string node below the sections with the setting it belongs to."""
    for key, value in root.value:
        if str(key.value).partition(".")[0] in _SECTIONS:
            yield from _below(value, str(key.value).rpartition(".")[2])


def _below(node: yaml.Node, name: str) -> Iterator[tuple[yaml.ScalarNode, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _below(value, str(key.value))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _below(value, name)
    elif isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        yield node, name
