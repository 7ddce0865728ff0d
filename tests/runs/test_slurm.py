"""Tasks of SLURM and devices of the run: one task for each device, or nothing begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs
from tests.runs.processes import Command
from tests.training.reward_models import runs as reward_runs

OPTIONS = [*runs.UNTAUGHT, "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
JOB = {"JOB_ID": "1", "JOB_NAME": "gspo", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "NNODES": "1"}
"""What SLURM sets for the first task of a job on one node."""
FEW = "is 2 and trainer.num_nodes 1, but SLURM has started 1 task (SLURM_NTASKS)"
MANY = "is 1 and trainer.num_nodes 1, but SLURM has started 2 tasks (SLURM_NTASKS)"
START = "start a task for each device (srun --nodes=1 --ntasks-per-node="
ALONE = "srun has not started this process"
SCRIPT = {"ENVIRONMENT": "BATCH"}
"""What SLURM sets for the script of a job, and for the steps in it."""
CASES = {
    "a device would be idle": (
        2, {"NTASKS": "1"}, [FEW, f"{START}2), or set trainer.devices: 1 and trainer.num_nodes: 1"],
    ),
    "the same run twice": (
        1, {"NTASKS": "2", "NTASKS_PER_NODE": "2"}, [MANY, f"{START}1)", "or set trainer.devices: 2 and"],
    ),
    "the second of them": (1, {"NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": "1", "LOCALID": "1"}, [MANY]),
    "on other nodes": (
        2, {"NTASKS": "2", "NTASKS_PER_NODE": "1", "NNODES": "2"},
        ["2 tasks (SLURM_NTASKS), 1 on each of 2 nodes", "or set trainer.devices: 1 and trainer.num_nodes: 2"],
    ),
    "Lightning's own check": (2, {"NTASKS": "1", "NTASKS_PER_NODE": "1"}, [FEW, f"{START}2)"]),
    "without tasks per node": (
        1, {"NTASKS": "2"}, ['Lightning\'s words: "You set `--ntasks=2`', "--ntasks-per-node equal to trainer.devices"],
    ),
    "a script without srun": (
        2, {"NTASKS": "2", "NTASKS_PER_NODE": "2"} | SCRIPT, [ALONE, "start it by srun --nodes=1 --ntasks-per-node=2"],
    ),
    "a script that asks for one task": (2, {"NTASKS": "1"} | SCRIPT, [ALONE, "name the job interactive"]),
    "a script with --ntasks": (2, {"NTASKS": "2"} | SCRIPT, [ALONE, "start it by srun with --nodes"]),
    "a shell of salloc": (
        2, {"NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": "", "NODEID": ""}, [ALONE, "start it by srun"],
    ),
    "a shell": (1, {"NTASKS": "2", "JOB_NAME": "bash", "STEP_NUM_TASKS": "2"}, ["does not take ranks from SLURM"]),
    "its second task": (1, {"NTASKS": "2", "JOB_NAME": "bash", "PROCID": "1"}, ["does not take ranks from SLURM"]),
}  # fmt: skip
"""Name -> devices, variables of the job ("": not set), parts of the message."""


def in_a_job(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in (JOB | variables).items():
        if value:
            patch.setenv(name if name in SCRIPT else f"SLURM_{name}", value)


@pytest.mark.thorough("a shell of salloc", "the second of them", "without tasks per node")
@pytest.mark.parametrize("name", CASES)
def test_slurm_tasks_that_do_not_match_devices_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices, variables, parts = CASES[name]
    in_a_job(monkeypatch, variables)
    runs.fit(tmp_path, *OPTIONS, f"--trainer.devices={devices}", code=2)
    message = capsys.readouterr().err
    assert all(part in message for part in parts), message
    assert not list(tmp_path.rglob("version_*"))


def test_an_evaluation_and_a_reward_model_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_job(monkeypatch, {"NTASKS": "2", "NTASKS_PER_NODE": "2"})
    folder = f"--trainer.default_root_dir={tmp_path}"
    options = ["--model.cold_start=null", "--trainer.accelerator=cpu", "--trainer.devices=1", folder]
    assert main(["validate", f"--config={runs.QUICKSTART}", *options]) == 2
    assert MANY in capsys.readouterr().err
    train = reward_runs.write(tmp_path / "pairs.jsonl", reward_runs.planted(9, seed=0))
    assert main(reward_runs.command(tmp_path, train, f"--data.val={train}", "--trainer.devices=1")) == 2
    assert MANY in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "variables",
    [
        {"NTASKS": "1"},
        {"NTASKS": "2", "JOB_NAME": "bash"},
        {"NTASKS": "4", "NTASKS_PER_NODE": "4"} | SCRIPT,
        {"NTASKS": "1", "NTASKS_PER_NODE": "4", "STEP_ID": "1", "STEP_NUM_TASKS": "1"} | SCRIPT,
    ],
)
def test_one_task_trains(variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a shell or in the script of a job with more, and in a step of such a job."""
    in_a_job(monkeypatch, variables)
    assert runs.summary(runs.fit(tmp_path, *OPTIONS, "--trainer.devices=1"))["updates"] == 2


def as_a_task() -> None:
    """Number this process as SLURM does."""
    rank = os.environ.pop("LOCAL_RANK")
    for name in ("NODE_RANK", "WORLD_SIZE"):
        del os.environ[name]
    variables = JOB | {"NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": rank, "LOCALID": rank, "STEP_ID": "0"}
    os.environ.update(SCRIPT | {f"SLURM_{name}": value for name, value in variables.items()})


@pytest.mark.thorough
def test_a_task_for_each_device_is_one_run(tmp_path: Path) -> None:
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, "--trainer.devices=2"]
    command = Command([*argv, f"--trainer.default_root_dir={tmp_path}"], 2, log=tmp_path / "log", prepare=as_a_task)
    assert command.start().wait() == [0, 0], (tmp_path / "log").read_text()
    (run,) = (tmp_path / "quickstart").iterdir()
    assert runs.checkpoint(run)["global_step"] == 2
