"""``gspo init`` writes a project that runs from any folder, and touches nothing that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.init.command import TASKS
from tests.runs import runs

FILES = {"README.md", "reward.py", "test_reward.py", "train.jsonl", "train.yaml"}
FEW = [
    "--model.cold_start.steps=2", "--trainer.max_epochs=1", "--data.prompts_per_rollout=4", "--data.group_size=2",
    "--data.evaluation.limit=4", "--data.reward_workers=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default project; its classes are registered once in this process."""
    folder = tmp_path_factory.mktemp("init") / "project"
    assert main(["init", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_every_task_writes_a_project_whose_config_is_right(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", f"sub/{task}", "--task", task]) == 0  # modules of a process have different names
    shown = capsys.readouterr().out
    folder = Path("sub") / task
    there = {file.name for file in folder.iterdir()}
    assert there == FILES | ({"demos.jsonl", "held_out.jsonl"} if task == "own" else set())
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len({record["prompt"] for record in records}) == (200 if task == "logic" else 20)
    for name in there:
        assert "FOLDER" not in (folder / name).read_text()
    if task != "own":  # its run is another test's; classes of one name would meet in this process
        command = shown.rpartition("next: gspo ")[2].split()
        assert main([*command, "--model.name_or_path=tiny-qwen3", "--print_config"]) == 0
        config = yaml.safe_load(capsys.readouterr().out)
        assert config["data"]["train"] == str(tmp_path / folder / "train.jsonl")


@pytest.mark.parametrize("task", ["own", *(pytest.param(t, marks=pytest.mark.long) for t in TASKS if t != "own")])
def test_the_written_test_passes_with_plain_pytest(task: str, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "project"), f"--task={task}"]) == 0
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, cwd=tmp_path / "project", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_a_project_runs_from_another_folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {file.name: file.read_bytes() for file in project.iterdir() if file.is_file()}
    assert main(["fit", "--config", str(project / "train.yaml"), *FEW]) == 0
    (run,) = Path("runs/train").glob("version_*")
    assert runs.summary(run)["updates"] == 4
    assert {file.name: file.read_bytes() for file in project.iterdir() if file.is_file()} == before


@pytest.mark.parametrize("there", ["a file in it", "a hidden file in it", "a file", "a folder below a file"])
def test_nothing_is_overwritten(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "project"
    if there in ("a file in it", "a hidden file in it"):
        folder.mkdir()
        (folder / (".git" if "hidden" in there else "train.yaml")).write_text("mine")
    else:
        folder.write_text("mine")
        folder = folder / "deeper" if "below" in there else folder
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(folder)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2  # what is wrong, and the fix
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "train.yaml").is_file()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_default_project_learns(seed: int, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", str(project / "train.yaml"), f"--seed_everything={seed}"]) == 0
    (run,) = Path("runs/train").glob("version_*")
    rewards = [value for _, value in runs.scalars(run)["reward/mean"]][::4]
    assert rewards[0] <= 0.65
    assert sum(rewards[3:6]) / 3 >= rewards[0] + 0.1  # from the start on
    assert sum(rewards[-3:]) / 3 >= 0.85


@pytest.mark.long
@pytest.mark.parametrize(("task", "gain"), [("code", 0.5), ("logic", 0.2)])
def test_other_projects_end_better_than_they_began(task: str, gain: float, tmp_path: Path) -> None:
    """Held-out accuracy; 20 puzzles of logic once were learnt by heart, and others forgotten.

    In a process of its own: rewards of one name would meet in this one.
    """
    assert main(["init", str(tmp_path / task), "--task", task]) == 0
    command = [sys.executable, "-m", "gspo_lightning", "fit", "--config", f"{task}/train.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    (summary,) = tmp_path.glob("runs/train/version_*/summary.json")
    found = json.loads(summary.read_text())
    assert found["accuracy_after"] >= found["accuracy_before"] + gain
