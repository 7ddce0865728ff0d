"""Moments at which tests kill a run are named by code that is there: a test that runs seldom finds a rename late."""

from __future__ import annotations

import functools
import importlib
import re

from tests import ROOT

MOMENT = re.compile(r"gspo_lightning\.[a-z_.]+:[A-Za-z_.]+")


def moments() -> list[str]:
    """Each ``module:name`` of code that the tests write."""
    texts = [file.read_text() for file in (ROOT / "tests").rglob("*.py")]
    return sorted({moment for text in texts for moment in MOMENT.findall(text)})


def test_a_moment_of_a_kill_names_code_that_is_there() -> None:
    named = moments()
    assert "gspo_lightning.training.module:GSPOModule.training_step" in named
    for moment in named:
        module, name = moment.split(":")
        functools.reduce(getattr, name.split("."), importlib.import_module(module))
