"""One run on a cluster of Ray: ``gspo fit``, as it is, in each worker of Ray Train.

    WORKERS=32 python examples/ray_train.py my.yaml                           # pip install 'ray[default,train]'

Start it in a folder that all nodes see under the same path, whatever ``trainer.default_root_dir`` says: workers change
to it, and Ray keeps its own state in ``runs/ray`` there. The same command goes on after an accident. If a worker dies,
Ray starts all of them again, up to ``RESTARTS`` times, and they go on from the last checkpoint. Workers of a node must
have neighbouring ranks, as many on each node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def arguments(options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``gspo`` in a worker.

    Args:
        options: a config, and more options of ``gspo fit``.
        environment: variables of ranks as Ray and torchrun set them; ``OVERLAY`` and ``DEVICE`` of the driver.

    Raises:
        ValueError: the nodes have different numbers of workers.
    """
    rank, world, local_rank, on_node, node = (
        int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    )
    if world % on_node or rank != node * on_node + local_rank:
        raise ValueError(
            f"rank {rank} of {world} is number {local_rank} of {on_node} on node {node}: nodes must have as many each"
        )
    overlay = environment.get("OVERLAY", "fsdp2")
    return [
        "fit", "--config", options[0], "--config", overlay, "--trainer.accelerator", environment.get("DEVICE", "gpu"),
        "--trainer.num_nodes", str(world // on_node), "--trainer.devices", str(on_node), "--ckpt_path", "last",
        *options[1:],
    ]  # fmt: skip


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Ray is to set in a worker before its process begins.

    Args:
        environment: variables of the driver.
    """
    named = {name: environment[name] for name in ("OVERLAY", "DEVICE") if name in environment}
    # torch reads it when it is loaded: what Ray sets itself comes too late in a process that has run something else
    named |= {"OMP_NUM_THREADS": environment.get("CPUS", "1"), "OMP_WAIT_POLICY": "PASSIVE"}
    named["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # Ray Train would print each line, and then log it to stderr as well
    if environment.get("DEVICE", "gpu") != "gpu":
        named["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all GPUs of a node to workers that have asked for none
    return named


def worker(driver: Mapping[str, Any]) -> None:
    """Train as one rank, in a thread of a process of Ray; Ray has made the process group."""
    from gspo_lightning.cli import main

    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]  # Lightning would take the ranks of a Ray that SLURM has started from them
    os.chdir(driver["folder"])
    if code := main(arguments(driver["options"], os.environ)):
        raise RuntimeError(f"gspo fit ended with exit code {code}")


def run(options: list[str], environment: Mapping[str, str]) -> None:
    """Start the workers and wait for them; raise what Ray Train raises if they failed too often."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    on_gpus = environment.get("DEVICE", "gpu") == "gpu"
    TorchTrainer(
        worker,
        train_loop_config={"folder": os.getcwd(), "options": options},
        scaling_config=ScalingConfig(
            num_workers=int(environment.get("WORKERS", "8")), use_gpu=on_gpus,
            resources_per_worker={"CPU": int(environment.get("CPUS", "1"))} | ({"GPU": 1} if on_gpus else {}),
        ),
        run_config=RunConfig(
            storage_path=str(Path("runs/ray").resolve()),
            failure_config=FailureConfig(max_failures=int(environment.get("RESTARTS", "3"))),
            worker_runtime_env={"env_vars": variables(environment)},
        ),
    ).fit()  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: ray_train.py CONFIG.yaml [more options of gspo fit]")
    run(sys.argv[1:], os.environ)
