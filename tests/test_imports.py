"""The rooms of the package stand on floors (docs/architecture.md): imports only point down, and never in a circle."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from tests import ROOT
from tools.rooms import FLOORS, PACKAGE, ROOT_FILES, arrows_between_files, circles, files, imports, room_of

OBJECTIVES_MAY_IMPORT = {
    "torch",
    "gspo_lightning.objectives",
    "gspo_lightning.core.types",
    "gspo_lightning.core.errors",
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


def test_every_room_has_its_floor_and_the_root_holds_the_files_that_are_named() -> None:
    there = {f.relative_to(PACKAGE).parts[0].removesuffix(".py") for f in files()}
    assert there == set(FLOORS), "put each new room into FLOORS, above everything that it imports"
    assert len(FLOORS) == len(set(FLOORS))
    assert {f.stem for f in PACKAGE.glob("*.py")} == ROOT_FILES, "a file has a room; the root holds these only"


def test_the_page_about_the_rooms_lists_them_from_the_top_down() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    assert listed == [room for room in FLOORS if room not in ("__main__", "__init__")]


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
