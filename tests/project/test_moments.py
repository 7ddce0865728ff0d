"""Moments at which tests kill a run are named by code that is there: a test that runs seldom finds a rename late."""

from __future__ import annotations

import ast
import functools
import importlib
import re

import pytest

from tests import ROOT

MOMENT = re.compile(r"gspo_lightning\.[a-z_.]+:[A-Za-z_.]+")


def moments() -> list[str]:
    """Each ``module:name`` of code that a string of the tests holds."""
    strings = [
        node.value
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return sorted({moment for text in strings for moment in MOMENT.findall(text)})


@pytest.mark.parametrize("moment", moments())
def test_a_moment_of_a_kill_names_code_that_is_there(moment: str) -> None:
    module, name = moment.split(":")
    functools.reduce(getattr, name.split("."), importlib.import_module(module))


def test_moments_are_found_in_tests() -> None:
    assert "gspo_lightning.training.module:GSPOModule.training_step" in moments()
