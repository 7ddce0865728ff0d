"""examples/first_run.ipynb runs from top to bottom in a kernel of its own, learns, and is committed without outputs."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOK = ROOT / "examples" / "first_run.ipynb"


def test_notebook_is_committed_without_outputs() -> None:
    """They would differ between machines, hide what changed, and go stale; the next test makes them anew."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


def test_notebook_first_installs_the_released_version_if_missing() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'"{project["name"]}=={project["version"]}"' in first
    lines = first.splitlines()
    guard = next(i for i, line in enumerate(lines) if line.startswith('if find_spec("gspo_lightning") is None:'))
    (install,) = [i for i, line in enumerate(lines) if line.strip().startswith("%pip install")]
    assert guard < install
    assert lines[install].startswith("    ")
    assert "import gspo" not in first


def test_the_site_has_a_badge_where_a_repository_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("docs_conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    page = (ROOT / "docs" / "python.md").read_text()
    shown = [page]
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    conf.badge(None, "python", shown)
    assert shown == [page]
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/repo")
    monkeypatch.setenv("GITHUB_REF_NAME", "v0.1.0")
    conf.badge(None, "python", shown)
    assert "/github/someone/repo/blob/v0.1.0/examples/first_run.ipynb)" in shown[0]


@pytest.mark.thorough
@pytest.mark.slow
def test_notebook_runs_and_its_model_learns(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(
        nbformat.v4.new_code_cell("import json\nprint('REWARDS', json.dumps([rewards[0], rewards[-1]]))")
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path)}
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=environment, cleanup_kc=True)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert text.count("before:") == 4
    first, last = (float(number) for number in text.rpartition("REWARDS [")[2].partition("]")[0].split(", "))
    assert first < 0.15
    assert last > first + 0.3
    assert not list(tmp_path.glob("*.ipynb"))
