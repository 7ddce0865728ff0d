"""Scripts of ``findings/``: what each says first, what it installs, what it leaves; they run outside the tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

SCRIPTS = sorted((ROOT / "findings").iterdir())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_finding_says_its_surprise_pins_what_it_installs_and_removes_its_folder(script: Path) -> None:
    assert script.suffix == ".sh"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    shebang, surprise, *lines = text.splitlines()
    assert shebang == "#!/usr/bin/env bash"
    assert re.fullmatch(r"# \S.*\.", surprise)
    assert "trap 'rm -rf \"$folder\"' EXIT" in lines
    (installed,) = re.findall(r"^venv/bin/pip install ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    packages = [word for word in installed.replace("\\\n", " ").split() if not word.startswith("-")]
    assert packages
    for package in packages:
        assert re.fullmatch(r"[\w-]+==[\d.]+", package), package
    assert "gspo" not in text  # it is about the packages that it names
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_each_finding_is_on_the_page_of_surprises() -> None:
    page = (ROOT / "docs" / "not_as_guessed.md").read_text()
    assert sorted(set(re.findall(r"`findings/(\w+\.sh)`", page))) == [script.name for script in SCRIPTS]


def test_make_findings_runs_all_or_the_one_that_is_named() -> None:
    def commands(*arguments: str) -> str:
        done = subprocess.run(
            ["make", "--dry-run", "findings", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    name = SCRIPTS[0].stem
    for script in SCRIPTS:
        relative = str(script.relative_to(ROOT))
        assert relative in commands()
        assert (relative in commands(f"FINDINGS={name}")) == (script.stem == name)
