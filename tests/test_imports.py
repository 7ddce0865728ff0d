"""The wings and their rooms have an order (docs/architecture.md): imports only point down, and never in a circle."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import ROOT
from tools.rooms import (
    FLOORS,
    PACKAGE,
    ROOT_FILES,
    WINGS,
    arrows_between_files,
    circles,
    files,
    imports,
    room_in_wing,
    room_of,
)

OBJECTIVES_MAY_IMPORT = {
    "torch",
    "gspo_lightning.objectives",
    "gspo_lightning.core.types",
    "gspo_lightning.core.errors",
    "gspo_lightning.core.signatures",  # the standard library only
}
"""Next to the standard library: an objective can be taken into any other trainer."""


def complaints(room: str, file: str, source: str) -> list[str]:
    """What is wrong with the imports of one file of a room."""
    found = []
    for line, module, name in imports(source):
        other, full = room_of(module, name), module if name is None else f"{module}.{name}"
        if module.split(".")[0] == "plugins":
            found.append(f"{file}:{line}: imports {full}; plug-ins belong to the user and are never imported by name")
        elif other is not None and other not in FLOORS:
            found.append(
                f"{file}:{line}: imports {full}, but {other!r} is not in FLOORS (tools/rooms.py): put it there"
            )
        elif other is not None and other != room and FLOORS.index(other) < FLOORS.index(room):
            found.append(
                f"{file}:{line}: {room} imports {full}, but {other} stands above {room} in FLOORS; move what is needed "
                f"down (into {room} or below), pass it in as an argument, or ask for a Protocol"
            )
    return found


def test_every_wing_has_its_floor_and_the_root_holds_the_files_that_are_named() -> None:
    there = {f.relative_to(PACKAGE).parts[0].removesuffix(".py") for f in files()}
    assert there == set(FLOORS), "put each new wing into WINGS, above everything that it imports"
    assert len(FLOORS) == len(set(FLOORS))
    assert {f.stem for f in PACKAGE.glob("*.py")} == ROOT_FILES, "a file has a wing; the root holds these only"
    assert len(FLOORS) <= 14, "a newcomer reads the names at one glance"


@pytest.mark.parametrize("wing", WINGS)
def test_every_room_has_its_place_in_its_wing(wing: str) -> None:
    folder, rooms = PACKAGE / wing, WINGS[wing]
    folders = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    alone = {room for room in rooms if (folder / f"{room}.py").is_file()}
    assert folders | alone == set(rooms) - {"."}, "put each new room into its wing in WINGS (tools/rooms.py)"
    assert len(rooms) == len(set(rooms))
    others = {path.stem for path in folder.glob("*.py")} - alone - {"__init__"}
    assert bool(others) == ("." in rooms), "'.' stands for the files of a wing that are in no room"


def test_the_page_lists_the_wings_from_the_top_down_and_the_rooms_of_each() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \*\*`(\w+)(?:/|\.py)`\*\* \|", page, flags=re.MULTILINE)
    assert listed == [wing for wing in FLOORS if wing not in ("__main__", "__init__")]
    for wing, rooms in WINGS.items():
        below = page.partition(f"| **`{wing}/`** |")[2].partition("\n| **`")[0].partition("\n\n")[0]
        named = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", below, flags=re.MULTILINE)
        assert named == [room for room in rooms if room != "."], wing


def test_imports_only_point_down() -> None:
    wrong = []
    for file in files():
        wing = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if wing in FLOORS and wing != "__init__":  # lazy: it hands on what is asked for
            wrong += complaints(wing, str(file.relative_to(PACKAGE.parent)), file.read_text(encoding="utf-8"))
    assert not wrong, "\n" + "\n".join(wrong)


def test_imports_between_the_rooms_of_a_wing_only_point_down() -> None:
    wrong = upward(arrows_between_files())
    assert not wrong, "\n" + "\n".join(wrong)


def upward(arrows: Mapping[str, set[str]]) -> list[str]:
    """Imports of a room from one above it in the same wing; the face of a wing hands on what its rooms have."""
    wrong = []
    for module, others in sorted(arrows.items()):
        here = room_in_wing(module)
        for other in sorted(others):
            there = room_in_wing(other)
            if here is None or there is None or here[0] != there[0]:
                continue
            rooms = WINGS[here[0]]
            if rooms.index(there[1]) < rooms.index(here[1]):
                wrong.append(
                    f"{module} imports {other}, but {there[1]!r} stands above {here[1]!r} in WINGS[{here[0]!r}]"
                )
    return wrong


def test_an_import_of_a_room_above_is_found() -> None:
    down, up = "gspo_lightning.policy.load.gguf", "gspo_lightning.policy.policy"
    assert upward({down: {up, "gspo_lightning.core.errors"}}) == []
    (found,) = upward({up: {down}})
    assert "'load' stands above '.'" in found


@pytest.mark.parametrize("packages", [("gspo_lightning",), ("benchmarks",), ("tools",)], ids=lambda names: names[0])
def test_no_files_import_each_other_in_a_circle(packages: tuple[str, ...]) -> None:
    found = circles(arrows_between_files(*packages))
    assert not found, "\n" + "\n".join(" <-> ".join(group) for group in found)


def test_nothing_imports_benchmarks_or_tests_and_tools_import_neither() -> None:
    for package, never in (
        ("gspo_lightning", {"benchmarks", "tools", "tests", "experiments", "plugins"}),
        ("tools", {"benchmarks", "tests", "experiments", "plugins"}),
        ("benchmarks", {"tests", "experiments", "plugins"}),
    ):
        for file in files(package):
            for line, module, _ in imports(file.read_text(encoding="utf-8")):
                where = f"{file.relative_to(ROOT)}:{line}"
                assert module.split(".")[0] not in never, f"{where}: imports {module}; pass it in, or move it down"


def test_files_are_short_and_list_their_names_only_as_faces_of_packages() -> None:
    for file in files():
        name, text = file.relative_to(PACKAGE), file.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, f"{name}: move what has a concept of its own into a file of its own"
        assert file.name == "__init__.py" or "\n__all__" not in text, f"{name}: only the face of a package has __all__"


def test_an_iteration_can_be_read_in_few_files() -> None:
    """Those that it imports from, and those that they import from: what a reader of ``Iteration.run`` may open."""
    arrows = arrows_between_files()
    direct = arrows["gspo_lightning.loop.experience.iteration"]
    behind = direct.union(*(arrows[file] for file in direct))
    assert len(direct) <= 15, sorted(direct)
    assert len(behind) <= 45, sorted(behind)


def test_the_package_itself_imports_nothing_heavy() -> None:
    """The table of moved names is all that it imports at once, and that needs the standard library alone."""
    table = "gspo_lightning.core.moved_names"
    assert imported_at_once(PACKAGE / "__init__.py") - sys.stdlib_module_names == {table}
    assert imported_at_once(PACKAGE / "core" / "moved_names.py") <= sys.stdlib_module_names


def imported_at_once(file: Path) -> set[str]:
    """Packages of others, and modules of this one, that a file imports at its top level."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    modules = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    modules += [str(node.module) for node in body if isinstance(node, ast.ImportFrom)]
    return {m if m.startswith("gspo_lightning") else m.split(".")[0] for m in modules}


def test_objectives_import_only_torch_types_and_errors() -> None:
    for file in (PACKAGE / "objectives").rglob("*.py"):
        for line, module, _ in imports(file.read_text(encoding="utf-8")):
            top = module.split(".")[0]
            names = {top, module, ".".join(module.split(".")[:2])}
            allowed = bool(names & OBJECTIVES_MAY_IMPORT) or top in sys.stdlib_module_names
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
        "from gspo_lightning.core.types import Prompt\nimport gspo_lightning.core.errors",
        "from gspo_lightning.policy.policy import Policy",
        "import torch, transformers",
    ],
)
def test_edges_that_point_down_are_fine(source: str) -> None:
    assert complaints("policy", "x.py", source) == []


def test_a_circle_is_found_and_a_diamond_is_none() -> None:
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [["b", "c"], ["d"]]
