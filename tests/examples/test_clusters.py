"""The ways onto a cluster: arguments of Ray's workers, and what the files for KubeRay and SkyPilot start.

Runs of torchrun and Ray themselves are in ``tests/runs/test_torchrun.py`` and ``tests/runs/test_ray.py``.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests import ROOT

EXAMPLES = ROOT / "examples"
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
"""What Ray sets in the only worker of a run."""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_train", EXAMPLES / "ray_train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # without Ray: it is imported by the driver alone
    return module


def test_a_worker_of_ray_is_a_rank_of_gspo_fit(example: ModuleType) -> None:
    """Rank 5 of 8 on the second of two nodes, on GPUs unless the driver says otherwise."""
    place = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1"}
    argv = example.arguments(["my.yaml", "--trainer.max_epochs=3"], place)
    assert " ".join(argv) == (
        "fit --config my.yaml --config fsdp2 --trainer.accelerator gpu --trainer.num_nodes 2 --trainer.devices 4 "
        "--ckpt_path last --trainer.max_epochs=3"
    )
    argv = example.arguments(["my.yaml"], place | {"OVERLAY": "ddp", "DEVICE": "cpu"})
    assert argv[3:7] == ["--config", "ddp", "--trainer.accelerator", "cpu"]


@pytest.mark.parametrize(
    ("rank", "local_rank", "on_node", "node"), [(0, 0, 2, 0), (2, 0, 1, 1)], ids=["first node", "second node"]
)
def test_nodes_with_different_numbers_of_workers_are_refused(
    rank: int, local_rank: int, on_node: int, node: int, example: ModuleType
) -> None:
    """Three workers, two of them on the first node."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    place = dict(zip(names, map(str, (rank, 3, local_rank, on_node, node)), strict=True))
    with pytest.raises(ValueError, match="nodes must have as many each"):
        example.arguments(["my.yaml"], place)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_worker_has_the_threads_and_gpus_that_it_has_asked_for(device: str, example: ModuleType) -> None:
    """Set before its process begins: torch reads threads when it is loaded, and Ray hides no GPU by itself."""
    driver = {"CPUS": "12", "DEVICE": device, "OVERLAY": "ddp", "WORKERS": "8", "CUDA_VISIBLE_DEVICES": "0,1"}
    variables = example.variables(driver)
    assert (variables["OMP_NUM_THREADS"], variables["OVERLAY"], variables["DEVICE"]) == ("12", "ddp", device)
    assert variables.get("CUDA_VISIBLE_DEVICES") == ("" if device == "cpu" else None)  # Ray chooses a GPU of each
    assert "CUDA_VISIBLE_DEVICES" not in example.variables({})
    assert example.variables({})["OMP_NUM_THREADS"] == "1"


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the only worker of a Ray that SLURM has started."""
    monkeypatch.chdir(tmp_path)
    for name, value in (ALONE | {"DEVICE": "cpu", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("alone")
def test_a_worker_fails_where_gspo_fails(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """In the driver's folder, and without the ranks of SLURM, which are none of this run's."""
    with pytest.raises(RuntimeError, match="exit code 2"):
        example.worker({"folder": str(ROOT), "options": ["not_there.yaml"]})
    assert "not_there.yaml" in capsys.readouterr().err
    assert Path.cwd() == ROOT
    assert not any(name.startswith("SLURM_") for name in os.environ)


@pytest.mark.usefixtures("alone")
def test_the_arguments_of_a_worker_are_accepted(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.worker({"folder": str(ROOT), "options": ["quickstart", "--print_config"]})
    printed = yaml.safe_load(capsys.readouterr().out)
    trainer = printed["trainer"]
    assert trainer["strategy"]["class_path"].endswith("FSDP2Strategy")
    assert [str(trainer[name]) for name in ("accelerator", "num_nodes", "devices")] == ["cpu", "1", "1"]
    assert printed["ckpt_path"] == "last"


def test_kuberay_starts_a_worker_for_every_gpu() -> None:
    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())["spec"]
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    program, *variables, python, script, config = job["entrypoint"].split()
    values = dict(variable.split("=") for variable in variables)
    assert (program, python, config) == ("env", "python", "my.yaml")
    source = (EXAMPLES / script).read_text()
    assert all(f'environment.get("{name}"' in source for name in values)
    assert int(values["WORKERS"]) == group["replicas"] * int(limits["nvidia.com/gpu"])
    assert int(values["CPUS"]) * int(limits["nvidia.com/gpu"]) == int(limits["cpu"])
    (head,) = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["image"] == container["image"]
    assert head["workingDir"] == container["workingDir"] == container["volumeMounts"][0]["mountPath"]


@pytest.mark.parametrize(("node", "first"), [("0", "true"), ("1", "false")])
def test_skypilot_runs_torchrun_on_every_node(node: str, first: str, tmp_path: Path) -> None:
    """Its command, with a torchrun that says what it was given."""
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "$PET_RDZV_CONF" "$@"\n')
    torchrun.chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SKYPILOT_NODE_RANK": node, "SKYPILOT_NUM_NODES": "4",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", **task["envs"],
    }  # fmt: skip
    said = subprocess.run(
        ["bash", "-c", task["run"]], env=variables, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == (
        f"is_host={first} --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29500 "
        "--rdzv-id gspo --max-restarts 3 -m gspo_lightning fit --config my.yaml --config configs/fsdp2.yaml "
        "--ckpt_path last --trainer.default_root_dir /runs"
    ).split()  # fmt: skip
    assert task["num_nodes"] == 4
    assert list(task["volumes"]) == ["/runs"]
