"""The rooms of the package import only upwards in one list (docs/architecture.md), read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gspo_lightning

PACKAGE = Path(gspo_lightning.__file__).parent
ROOMS = [
    "types",
    "errors",
    "blame",
    "registry",
    "randomness",
    "loading",
    "hub",
    "optimizers",
    "schedules",
    "distributed",
    "resume",
    "objectives",
    "advantages",
    "logprobs",
    "packing",
    "memory",
    "attention",
    "routing",
    "metrics",
    "collapse",
    "rewards",
    "environments",
    "prompts",
    "tiny",
    "four_bit",
    "lora",
    "rounding",
    "silence",
    "policy",
    "rope",
    "leaks",
    "policy_checks",
    "sharding",
    "strategies",
    "precision",
    "rollouts",
    "averaging",
    "old_policy",
    "old_logprobs",
    "ahead",
    "reference",
    "shaping",
    "update",
    "nonfinite",
    "patience",
    "trainer_checks",
    "checks",
    "experience",
    "coldstart",
    "loader",
    "data",
    "module",
    "trainer_api",
    "commands",
    "callbacks",
    "fields",
    "arguments",
    "training_cli",
    "plan",
    "cli",
    "__main__",
]
"""A room may import the rooms above it. This list is the rule; a new room is added where it belongs."""

OBJECTIVES_MAY_IMPORT = {"torch", "gspo_lightning.objectives", "gspo_lightning.types", "gspo_lightning.errors"}
"""Next to the standard library: an objective can be taken into any other trainer."""


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import outside ``if TYPE_CHECKING``, those inside functions included."""
    stack: list[ast.AST] = [ast.parse(source)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: use absolute imports"
            if node.module == "gspo_lightning":
                yield from ((node.lineno, f"gspo_lightning.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, str(node.module)
        stack.extend(ast.iter_child_nodes(node))


def room_of(module: str) -> str | None:
    """The room of a module of this package; None for others and for what the package itself defines."""
    parts = module.split(".")
    if parts[0] != "gspo_lightning" or len(parts) == 1 or parts[1] == "__version__":
        return None
    return parts[1]


def complaints(room: str, file: str, source: str) -> list[str]:
    """What is wrong with the imports of one file of a room."""
    found = []
    for line, module in imports(source):
        other = room_of(module)
        if module.split(".")[0] == "plugins":
            found.append(f"{file}:{line}: imports {module}; plug-ins belong to the user and are never imported by name")
        elif other is not None and other not in ROOMS:
            found.append(f"{file}:{line}: imports {module}, but {other!r} is not in ROOMS of this test: put it there")
        elif other is not None and other != room and ROOMS.index(other) > ROOMS.index(room):
            found.append(
                f"{file}:{line}: {room} imports {module}, but {other} lies below {room} in ROOMS; move what is needed "
                f"up (into {room} or above), pass it in as an argument, or import it under TYPE_CHECKING for types"
            )
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_room_is_in_the_list_and_every_entry_exists() -> None:
    there = {f.relative_to(PACKAGE).parts[0].removesuffix(".py") for f in files()} - {"__init__"}
    assert there == set(ROOMS), "put each new room into ROOMS, above everything that imports it"
    assert len(ROOMS) == len(set(ROOMS))


def test_imports_only_point_up_the_list() -> None:
    wrong = []
    for file in files():
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ROOMS:
            wrong += complaints(room, str(file.relative_to(PACKAGE.parent)), file.read_text(encoding="utf-8"))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_package_itself_imports_nothing_heavy() -> None:
    found = [module for _, module in imports((PACKAGE / "__init__.py").read_text(encoding="utf-8"))]
    assert {m.split(".")[0] for m in found} <= sys.stdlib_module_names


def test_objectives_import_only_torch_types_and_errors() -> None:
    for file in (PACKAGE / "objectives").rglob("*.py"):
        for line, module in imports(file.read_text(encoding="utf-8")):
            top = module.split(".")[0]
            name = ".".join(module.split(".")[:2]) if top == "gspo_lightning" else top
            allowed = name in OBJECTIVES_MAY_IMPORT or top in sys.stdlib_module_names
            assert allowed, f"{file.name}:{line}: imports {module}; allowed: {sorted(OBJECTIVES_MAY_IMPORT)} and stdlib"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "from gspo_lightning.module import GSPOModule",
            "x.py:1: policy imports gspo_lightning.module, but",
        ),
        ("import gspo_lightning.data", "policy imports gspo_lightning.data"),
        ("from gspo_lightning import rollouts", "policy imports gspo_lightning.rollouts"),
        ("def f():\n    import gspo_lightning.cli", "x.py:2: policy imports gspo_lightning.cli"),
        ("import plugins.brevity", "never imported by name"),
        ("from plugins import brevity", "never imported by name"),
        ("from gspo_lightning.attic import x", "'attic' is not in ROOMS"),
    ],
)
def test_an_edge_that_points_the_wrong_way_is_found(source: str, complaint: str) -> None:
    (found,) = complaints("policy", "x.py", source)
    assert complaint in found


@pytest.mark.parametrize(
    "source",
    [
        "from gspo_lightning.types import Prompt\nimport gspo_lightning.errors\nfrom gspo_lightning import __version__",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gspo_lightning.module import GSPOModule",
        "from gspo_lightning.policy import Policy",
        "import torch, transformers",
    ],
)
def test_edges_that_point_up_are_fine(source: str) -> None:
    assert complaints("policy", "x.py", source) == []
