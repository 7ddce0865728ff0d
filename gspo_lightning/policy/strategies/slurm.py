"""Processes that SLURM has started: one for every device of the run, or the run is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

from gspo_lightning.core.errors import UserError

INTERACTIVE = ("bash", "interactive")
"""Names of jobs in which Lightning ignores SLURM and starts the processes itself."""


def check_tasks(trainer: Trainer, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a run whose processes are not those that SLURM has started.

    Lightning (2.6) takes rank and number of processes from SLURM and devices from the trainer, and compares the two in
    some cases only: with fewer tasks than devices it leaves devices idle, and on a single device every task would train
    the same run.

    Args:
        trainer: of the run.
        environment: environment variables of this process; nothing is checked without those of SLURM.

    Raises:
        UserError: the numbers differ.
    """
    ranks = getattr(trainer.strategy, "cluster_environment", None)  # a single device has none
    if "SLURM_PROCID" not in environment or not isinstance(ranks, SLURMEnvironment | LightningEnvironment | None):
        return
    if isinstance(ranks, LightningEnvironment) or environment.get("SLURM_JOB_NAME") in INTERACTIVE:
        _check_alone(environment)
        return
    devices = trainer.num_devices
    nodes = trainer.num_nodes
    tasks = int(environment.get("SLURM_NTASKS", devices * nodes))
    if not _by_srun(environment):
        if ranks is not None and max(tasks, devices * nodes) > 1:
            problem = f"is {devices} and trainer.num_nodes {nodes}, but "
            raise _without_srun(problem, environment, f"--nodes={nodes} --ntasks-per-node={devices}")
        return  # one process, however many tasks the job may start
    of_job = int(environment.get("SLURM_NNODES", nodes))
    on_each = int(environment.get("SLURM_NTASKS_PER_NODE", devices))
    spread = (on_each, of_job) == (devices, nodes) or devices * nodes == 1
    if tasks == devices * nodes and spread:
        return
    where = "" if spread or tasks == 1 else f", {on_each} on each of {of_job} nodes (SLURM_NTASKS_PER_NODE)"
    begin = f"start a task for each device (srun --nodes={nodes} --ntasks-per-node={devices})"
    raise UserError(
        "trainer.devices",
        f"is {devices} and trainer.num_nodes {nodes}, but SLURM has started {tasks} task{'s' * (tasks > 1)} "
        f"(SLURM_NTASKS){where}: each is a rank with one device",
        fix=f"{begin}, or set trainer.devices: {max(tasks // of_job, 1)} and trainer.num_nodes: {of_job}",
    )


def _by_srun(environment: Mapping[str, str]) -> bool:
    """False in the script of a job, and in a shell of it: SLURM names its tasks there as well, but starts none."""
    if any(f"SLURM_{name}" in environment for name in ("STEP_ID", "STEPID", "STEP_NUM_TASKS")):
        return True
    return "SLURM_PROCID" in environment and environment.get("ENVIRONMENT") != "BATCH"


def _without_srun(problem: str, environment: Mapping[str, str], numbers: str) -> UserError:
    tasks = int(environment.get("SLURM_NTASKS", "1"))
    return UserError(
        "trainer.devices",
        f"{problem}srun has not started this process: Lightning takes it for the first task of the job "
        f"({tasks}, SLURM_NTASKS) and would wait for tasks that nobody starts",
        fix=f"start it by srun {numbers}; or, on one node, name the job interactive (--job-name), so that Lightning "
        "starts the processes itself",
    )


def _check_alone(environment: Mapping[str, str]) -> None:
    """Refuse several tasks where Lightning starts the ranks itself, in each of them."""
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if "LOCAL_RANK" not in environment and (tasks > 1 or environment["SLURM_PROCID"] != "0"):
        raise UserError(
            "srun --ntasks",
            f"is {max(tasks, 2)}, but in this job Lightning does not take ranks from SLURM (its name is bash or "
            "interactive, or trainer.plugins says so): every task would train the same run",
            fix="give the job another name (--job-name), or start one task",
        )


def explained(error: Exception, environment: Mapping[str, str] = os.environ) -> UserError | None:
    """Return what Lightning says about the tasks of SLURM as a mistake of the user; None for another error.

    Args:
        error: raised while the trainer was built.
        environment: environment variables of this process.
    """
    text = " ".join(str(error).split())
    if "SLURM" not in text or "SLURM_NTASKS" not in environment:
        return None
    if not _by_srun(environment):
        numbers = "with --nodes equal to trainer.num_nodes, --ntasks-per-node equal to trainer.devices"
        return _without_srun("and the job do not go together: ", environment, numbers)
    tasks = environment["SLURM_NTASKS"]
    nodes = environment.get("SLURM_NNODES", "1")
    return UserError(
        "trainer.devices",
        f"and the tasks of SLURM ({tasks} on {nodes} node{'s' * (nodes != '1')}) do not go together. Lightning's "
        f'words: "{text}"',
        fix="start a task for each device: --nodes equal to trainer.num_nodes, --ntasks-per-node equal to "
        "trainer.devices, no --ntasks (examples/slurm.sh)",
    )
