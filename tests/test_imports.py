"""The rooms of the package stand on floors (docs/architecture.md): imports only point down, and never in a circle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gspo_lightning

PACKAGE = Path(gspo_lightning.__file__).parent
ROOT_FILES = {"__init__", "__main__", "cli", "types", "errors", "registry", "randomness", "distributed"}
"""All the Python files that lie beside the rooms; whatever else there is has a room."""
FLOORS = [
    "__main__",
    "cli",
    "__init__",
    "commands",
    "callbacks",
    "training",
    "evaluation",
    "experience",
    "update",
    "rollouts",
    "old_policy",
    "packing",
    "strategies",
    "prompts",
    "advantages",
    "metrics",
    "environments",
    "rewards",
    "policy",
    "report",
    "resume",
    "sandbox",
    "objectives",
    "distributed",
    "registry",
    "randomness",
    "types",
    "errors",
]
"""From the top floor down. A room may import the rooms below it; a new room is put where it belongs."""

OBJECTIVES_MAY_IMPORT = {"torch", "gspo_lightning.objectives", "gspo_lightning.types", "gspo_lightning.errors"}
"""Next to the standard library: an objective can be taken into any other trainer."""


def imports(source: str) -> Iterator[tuple[int, str, str | None]]:
    """(line, module, name) of every import, those inside functions and under ``TYPE_CHECKING`` included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: use absolute imports"
            yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)


def room_of(module: str, name: str | None) -> str | None:
    """The room that an import reaches; None for other packages."""
    parts = module.split(".")
    if parts[0] != "gspo_lightning":
        return None
    if len(parts) > 1:
        return parts[1]
    return name if (name is not None and (PACKAGE / name).is_dir()) or f"{name}" in ROOT_FILES else "__init__"


def complaints(room: str, file: str, source: str) -> list[str]:
    """What is wrong with the imports of one file of a room."""
    found = []
    for line, module, name in imports(source):
        other, full = room_of(module, name), module if name is None else f"{module}.{name}"
        if module.split(".")[0] == "plugins":
            found.append(f"{file}:{line}: imports {full}; plug-ins belong to the user and are never imported by name")
        elif other is not None and other not in FLOORS:
            found.append(f"{file}:{line}: imports {full}, but {other!r} is not in FLOORS of this test: put it there")
        elif other is not None and other != room and FLOORS.index(other) < FLOORS.index(room):
            found.append(
                f"{file}:{line}: {room} imports {full}, but {other} stands above {room} in FLOORS; move what is needed "
                f"down (into {room} or below), pass it in as an argument, or ask for a Protocol"
            )
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of files that reach one another through imports (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1 or node in arrows.get(node, ()):
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def arrows_between_files() -> dict[str, set[str]]:
    """Module -> the modules that it imports from; a name that a package hands on counts for where it comes from."""
    names = {
        ".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): f for f in files()
    }
    found = {module: list(imports(f.read_text(encoding="utf-8"))) for module, f in names.items()}
    handed_on = {
        (package, name): module
        for package, f in names.items()
        if f.name == "__init__.py"
        for _, module, name in found[package]
        if name is not None and f"{package}.{name}" not in names
    }

    def target(module: str, name: str | None) -> str | None:
        while (module, name) in handed_on and handed_on[module, name] != module:
            module = handed_on[module, name]
        full = f"{module}.{name}"
        return full if full in names else module if module in names else None

    return {
        module: {other for _, m, n in lines if (other := target(m, n)) is not None} for module, lines in found.items()
    }


def test_every_room_has_its_floor_and_the_root_holds_eight_files() -> None:
    there = {f.relative_to(PACKAGE).parts[0].removesuffix(".py") for f in files()}
    assert there == set(FLOORS), "put each new room into FLOORS, above everything that it imports"
    assert len(FLOORS) == len(set(FLOORS))
    assert {f.stem for f in PACKAGE.glob("*.py")} == ROOT_FILES, "a file has a room; the root holds these only"


def test_imports_only_point_down() -> None:
    wrong = []
    for file in files():
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in FLOORS and room != "__init__":  # lazy: it hands on what is asked for
            wrong += complaints(room, str(file.relative_to(PACKAGE.parent)), file.read_text(encoding="utf-8"))
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle() -> None:
    found = circles(arrows_between_files())
    assert not found, "\n" + "\n".join(" <-> ".join(group) for group in found)


def test_the_package_itself_imports_nothing_heavy() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    found = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    found += [str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {m.split(".")[0] for m in found} <= sys.stdlib_module_names


def test_objectives_import_only_torch_types_and_errors() -> None:
    for file in (PACKAGE / "objectives").rglob("*.py"):
        for line, module, _ in imports(file.read_text(encoding="utf-8")):
            top = module.split(".")[0]
            name = ".".join(module.split(".")[:2]) if top == "gspo_lightning" else top
            allowed = name in OBJECTIVES_MAY_IMPORT or top in sys.stdlib_module_names
            assert allowed, f"{file.name}:{line}: imports {module}; allowed: {sorted(OBJECTIVES_MAY_IMPORT)} and stdlib"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from gspo_lightning.training.module import GSPOModule", "x.py:1: policy imports gspo_lightning.training.mod"),
        ("import gspo_lightning.training.data", "policy imports gspo_lightning.training.data"),
        ("from gspo_lightning import rollouts", "policy imports gspo_lightning.rollouts"),
        ("from gspo_lightning import __version__", "policy imports gspo_lightning.__version__"),
        ("def f():\n    import gspo_lightning.cli", "x.py:2: policy imports gspo_lightning.cli"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gspo_lightning.training import module",
            "x.py:3: policy imports gspo_lightning.training.module",
        ),
        ("import plugins.brevity", "never imported by name"),
        ("from plugins import brevity", "never imported by name"),
        ("from gspo_lightning.attic import x", "'attic' is not in FLOORS"),
    ],
)
def test_an_edge_that_points_the_wrong_way_is_found(source: str, complaint: str) -> None:
    (found,) = complaints("policy", "x.py", source)
    assert complaint in found


@pytest.mark.parametrize(
    "source",
    [
        "from gspo_lightning.types import Prompt\nimport gspo_lightning.errors",
        "from gspo_lightning.policy.policy import Policy",
        "import torch, transformers",
    ],
)
def test_edges_that_point_down_are_fine(source: str) -> None:
    assert complaints("policy", "x.py", source) == []


def test_a_circle_is_found_and_a_diamond_is_none() -> None:
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [["b", "c"], ["d"]]
