"""Each hostile program is stopped by the layer that is said to stop it, and goes further without that layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_catalogue import PROGRAMS, applies, complaints
from hostile_program import Hostile

from gspo_lightning.rewards.sandbox import Kind
from gspo_lightning.rewards.sandbox.probe import Trial

KINDS = (Kind.BUBBLEWRAP, Kind.LANDLOCK)
CASES = [
    pytest.param(program, kind, id=f"{kind}-{program.name}")
    for kind in KINDS
    for program in PROGRAMS
    if applies(program, kind)
]
ORDINARY = 4242
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.mark.thorough("landlock-burns_the_cpu", "landlock-burns_the_cpu_in_one_call", "landlock-ignores_the_cpu_limit")
@pytest.mark.parametrize(("program", "kind"), CASES)
def test_stopped_by_its_layer(program: Hostile, kind: Kind, working: dict[Kind, Trial], target: dict[str, Any]) -> None:
    if kind not in working:
        pytest.skip(f"{kind} does not work here: make sandbox; gspo doctor")
    assert list(complaints(program, kind, working[kind].python, target)) == []


@pytest.mark.thorough("landlock-stopped")
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.parametrize(
    "options", [["--stopped"], pytest.param([], marks=pytest.mark.long)], ids=["stopped", "by its layer"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_by_its_layer_for_an_ordinary_user(
    kind: Kind, options: list[str], working: dict[Kind, Trial], target: dict[str, Any]
) -> None:
    """All of them in one process of another user, with the system's interpreter, which such a user can read."""
    if kind not in working or not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"{kind} with {SYSTEM_PYTHON} does not work here: make sandbox; gspo doctor")
    os.chown(target["folder"], ORDINARY, ORDINARY)
    for name in ("secret", "scratch"):
        os.chown(target[name], ORDINARY, ORDINARY)
    here, package = Path(__file__).parent, Path(sys.modules["gspo_lightning"].__file__ or "").parents[1]
    found = subprocess.run(
        [SYSTEM_PYTHON, "-B", str(here / "hostile_catalogue.py"), kind.value, *options],
        input=json.dumps(target),
        env={"PYTHONPATH": str(package), "GSPO_TEST_SECRET": "secret"},
        user=ORDINARY,
        group=ORDINARY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=900,
    )
    expected = sum(applies(p, kind) and not getattr(p, kind.value).root_only for p in PROGRAMS)
    assert found.stdout == f"{expected} programs as user {ORDINARY}\n", found.stderr


def test_there_are_at_least_forty() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names) >= 40
