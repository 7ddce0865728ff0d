"""``python -m tools.defects``: every patch fits the tree and names tests that are there; on a package of one file."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tools.defects.patch import Patch, read_patches

FOLDER = ROOT / "tools" / "defects"
PATCHES = read_patches(FOLDER)


def test_there_are_at_least_forty() -> None:
    assert len({patch.hunks for patch in PATCHES}) == len(PATCHES) >= 40


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_fits_the_tree_and_its_head_says_what_it_is(patch: Patch) -> None:
    """Where this fails: make the change that the head tells by hand, and keep its ``git diff -U1``."""
    changed = patch.changed(ROOT)
    assert changed
    for file, text in changed.items():
        assert file.is_relative_to(ROOT / "gspo_lightning")
        ast.parse(text)
    assert patch.said.endswith(".")
    assert re.fullmatch("[0-9a-f]{7}", patch.mended)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_the_tests_of_a_patch_are_in_the_default_suite(patch: Patch) -> None:
    assert patch.tests
    for test in patch.tests:
        file, _, name = test.partition("[")[0].partition("::")
        module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        (found,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
        marks = [
            *found.decorator_list,
            *(n for n in module.body if isinstance(n, ast.Assign) and "pytestmark" in ast.dump(n)),
        ]
        assert not any(ast.unparse(mark).endswith("pytest.mark.long") for mark in marks), f"{test} is a long one"


CODE = "def half(x: float) -> float:\n    return x / 2\n\n\ndef third(x: float) -> float:\n    return x / 3\n"
TESTS = """
import pytest
from tiny import half, third

def test_half():
    assert half(3) == 1.5

@pytest.mark.parametrize("x", [0, 3])
def test_third(x):
    assert third(x) == x / 3

def test_nothing():
    half(1)

def test_always_fails():
    assert half(1) == 7
"""
HEAD = "It halved too little.\n\nMended by: 1234567\nCaught by: test_tiny.py::{}\n\ndiff --git a/tiny.py b/tiny.py\n"
HUNK = "--- a/tiny.py\n+++ b/tiny.py\n@@ -9,2 +9,2 @@\n def {}(x: float) -> float:\n-    return {}\n+    return {}\n"
MADE = {
    "a-caught": ("test_half", ("half", "x / 2", "x // 2")),
    "b-one-case": ("test_third", ("third", "x / 3", "x / 4")),
    "c-missed": ("test_nothing", ("half", "x / 2", "x // 2")),
    "d-broken": ("test_half", ("half", "x / 2", "y / 2")),
    "e-no-fit": ("test_half", ("half", "x / 5", "x // 2")),
    "f-fails": ("test_always_fails", ("half", "x / 2", "x // 2")),
    "g-not-there": ("test_gone", ("half", "x / 2", "x // 2")),
}


def test_every_kind_of_defect_gets_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(CODE)
    (tmp_path / "test_tiny.py").write_text(TESTS)
    for name, (test, change) in MADE.items():
        (tmp_path / f"{name}.patch").write_text(HEAD.format(test) + HUNK.format(*change))

    def run(*names: str) -> tuple[int, dict[str, str]]:
        command = [sys.executable, "-m", "tools.defects", *names, "--root", str(tmp_path), "--patches", str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--preload", "pytest"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()[:-1]]
        return done.returncode, dict(lines)

    code, said = run()
    assert code == 1
    kinds = ("caught", "caught", "missed", "broken", "broken", "fails without the defect", "not there")
    assert [rest.startswith(kind) for rest, kind in zip(said.values(), kinds, strict=True)] == [True] * 7, said
    assert "assert 1 == 1.5" in said["a-caught"]
    assert "NameError" in said["d-broken"]
    assert run("a-caught", "b-one-case")[0] == 0
