"""``python -m tools.mutants`` on a package of one file: good tests kill every mutant, weak ones leave survivors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tools.mutants.__main__ import parse

SOURCE = '''
"""Sentences with 3 numbers and a > b are no code."""

__all__ = ["clip"]


def clip(x: float, low: float = -1.0) -> float:
    """Not below low."""
    if x != x:
        raise ValueError(f"x is NaN, not {1 + 1}")
    return low * 2 if x < low else x * 2
'''
GOOD = """
import math
import pytest
from tiny.clip import clip

def test_everything():
    assert [clip(-3.0), clip(0.5), clip(2.0, 3.0), clip(-1.0)] == [-2.0, 1.0, 6.0, -2.0]
    with pytest.raises(ValueError, match="NaN"):
        clip(math.nan)
"""
WEAK = """
from tiny.clip import clip

def test_inside_only():
    assert clip(0.5) == 1.0
"""
TIE = """
[[accepted]]
reason = "At a tie both branches give the same number."
mutants = ["tiny/clip.py: return low * 2 if x < low else x * 2 => return low * 2 if (x <= low) else x * 2"]

[[accepted]]
reason = "Not there."
mutants = ["tiny/clip.py: old => new"]
"""


def run(root: Path, *options: str) -> tuple[int, str, str]:
    """Exit code, what was printed, the report."""
    command = [sys.executable, "-m", "tools.mutants", "--root", str(root), "--cover", "tiny/*.py=test_tiny.py"]
    command += ["--jobs", "2", "--report", str(root / "report.md"), "--accepted", str(root / "accepted.toml"), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    page = root / "report.md"
    return found.returncode, found.stdout + found.stderr, page.read_text() if page.exists() else ""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "__init__.py").touch()
    (tmp_path / "tiny" / "clip.py").write_text(SOURCE)
    (tmp_path / "accepted.toml").write_text(TIE)
    return tmp_path


@pytest.mark.thorough
def test_a_good_test_kills_all_but_the_tie(project: Path) -> None:
    (project / "test_tiny.py").write_text(GOOD)
    before = sorted(p.name for p in project.rglob("*.py"))
    code, said, page = run(project)
    assert code == 0, said
    assert "survived, a gap" in page
    assert "At a tie both branches give the same number." in page
    assert "## Survivors that are gaps\n\nNone." in page
    assert "tiny/clip.py: old => new" in page, "a row of the table that matches nothing is reported"
    assert "equivalent 1" in said
    assert "NaN, not" not in page, "messages are no code"
    assert sorted(p.name for p in project.rglob("*.py")) == before
    assert (project / "tiny" / "clip.py").read_text() == SOURCE


@pytest.mark.thorough
def test_a_weak_test_leaves_survivors_that_are_named(project: Path) -> None:
    (project / "test_tiny.py").write_text(WEAK)
    code, said, page = run(project)
    assert code == 1, said
    line = "return low * 2 if x < low else x * 2"
    assert f"@@ tiny/clip.py:11 sign\n- {line}\n+ return (low / 2) if x < low else x * 2" in page
    assert f"- {line}\n+ return low * 2 if x < low else (x / 2)" not in page
    assert "@@ tiny/clip.py:7 constant\n- def clip(x: float, low: float = -1.0) -> float:\n" in page
    assert "survived tiny/clip.py:11" in said


def test_a_test_that_fails_without_a_mutant_is_an_error(project: Path) -> None:
    (project / "test_tiny.py").write_text(WEAK.replace("== 1.0", "== 1.1"))
    code, said, page = run(project)
    assert code == 2
    assert "do not pass on the unchanged files" in said
    assert page == ""


@pytest.mark.thorough
def test_a_sample_is_the_same_for_the_same_seed(project: Path) -> None:
    (project / "test_tiny.py").write_text(GOOD)
    first, second = (run(project, "--list", "--sample", "4", "--seed", "1")[1] for _ in range(2))
    assert first == second
    assert first.count("    + ") == 4


@pytest.mark.thorough
def test_a_mutant_that_never_ends_is_a_time_out(project: Path) -> None:
    (project / "tiny" / "clip.py").write_text("def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n")
    (project / "test_tiny.py").write_text("from tiny.clip import count\n\ndef test():\n    assert count(3) == 0\n")
    code, said, page = run(project, "--limit", "1")
    assert code == 0, said
    assert "## Time-outs (counted as killed)\n\n```diff\n@@ tiny/clip.py:" in page


@pytest.mark.long
def test_stop_gradients_are_tried_where_a_gradient_is_recorded_and_nowhere_else(project: Path) -> None:
    (project / "tiny" / "clip.py").write_text(
        "import torch\n\nPair = tuple[torch.Tensor, int]\n\n\ndef weighted(x):\n    weight = x.detach()\n"
        "    with torch.no_grad():\n        size = x.sum() * 3\n    return weight * x + size\n"
    )
    (project / "test_tiny.py").write_text(
        "import torch\nfrom tiny.clip import weighted\n\ndef test():\n"
        "    x = torch.tensor(2.0, requires_grad=True)\n    weighted(x).backward()\n    assert x.grad == 2\n"
    )
    listed = run(project, "--list", "--kind", "stop-gradient")[1]
    assert {line.strip() for line in listed.splitlines() if line.startswith("    + ")} == {
        "+ weight = x",
        "+ with torch.enable_grad():",
        "+ return (weight * x + size).detach()",
        "+ return (weight * x).detach() + size",
        "+ return weight * (x).detach() + size",
    }
    code, said, _ = run(project, "--kind", "stop-gradient")
    assert code == 0, said
    assert "killed 5 of 5" in said


def test_the_report_has_every_file_that_is_mutated() -> None:
    page = (ROOT / "tools" / "mutants" / "report.md").read_text(encoding="utf-8")
    files = [file for file in parse([]).files if not file.endswith("__init__.py")]
    assert "gspo_lightning/objectives/distillation.py" in files
    assert [file for file in files if f"| `{file}` |" not in page] == []
