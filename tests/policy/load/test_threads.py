"""A small model runs on one thread unless somebody chose another number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gspo_lightning.policy.load import threads
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.threads import few_threads, width_of
from tests import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own, on a machine with three cores."""
    before = torch.get_num_threads()
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_DEFAULT", 3)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def seen(width: int | None, device: torch.device = CPU) -> tuple[int, str | None]:
    with few_threads(width, device):
        return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


@pytest.mark.usefixtures("nobody_chose")
def test_a_small_model_on_a_cpu_and_afterwards_all_is_as_before() -> None:
    assert seen(64) == (1, "1")
    assert (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")) == (3, None)


@pytest.mark.usefixtures("nobody_chose")
@pytest.mark.parametrize(("width", "device"), [(129, "cpu"), (None, "cpu"), (64, "cuda")])
def test_large_and_gpu_models_keep_their_threads(width: int | None, device: str) -> None:
    assert seen(width, torch.device(device)) == (3, None)


@pytest.mark.usefixtures("nobody_chose")
def test_chosen_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    assert seen(64) == (2, None)
    torch.set_num_threads(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert seen(64) == (3, "3")


def test_width_is_a_function_of_the_model(tmp_path: Path) -> None:
    assert width_of(ModelSettings("tiny-qwen3-moe")) == 64
    assert width_of(ModelSettings("tiny-qwen3", config_overrides={"hidden_size": 512})) == 512
    assert width_of(ModelSettings("Qwen/Qwen3-0.6B")) is None
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 96}))
    assert width_of(ModelSettings(str(tmp_path))) == 96
    (tmp_path / "config.json").write_text("[")
    assert width_of(ModelSettings(str(tmp_path))) is None


SHOW = """\
import torch
from lightning.pytorch import Callback

class Threads(Callback):
    def setup(self, trainer, pl_module, stage):
        print(f"rank {trainer.global_rank}: {torch.get_num_threads()}", flush=True)
"""


COMMAND = """
import os, sys
from gspo_lightning.cli import entry_point
sys.argv = ["gspo", "--version"]
try:
    entry_point()
except SystemExit:
    print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""


@pytest.mark.parametrize(("given", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_somebody_chose_otherwise(given: str | None, wanted: str) -> None:
    """OpenMP reads the variable when torch loads it."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"PYTHONPATH": str(ROOT)}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == f"{wanted} False"


@pytest.mark.long
@pytest.mark.parametrize(("given", "wanted"), [(None, 1), ("2", 2)])
def test_ranks_of_a_process_of_its_own(given: str | None, wanted: int, tmp_path: Path) -> None:
    """Where torch chooses more than one thread; Lightning would give each of two ranks half of the cores."""
    (tmp_path / "show.py").write_text(SHOW)
    environment = {k: v for k, v in os.environ.items() if k not in threads.VARIABLES}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"OMP_NUM_THREADS": given} if given else {})
    words = [
        "fit", "--config=quickstart", "--plugins=show.py", '--trainer.callbacks+={"class_path": "show.Threads"}',
        "--trainer.devices=2", "--trainer.max_epochs=1", "--model.cold_start=null", "--data.val=null",
        "--data.train.size=64", "--data.prompts_per_rollout=8", "--data.group_size=2", "--data.reward_workers=1",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "gspo_lightning", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"rank 0: {wanted}" in done.stdout
    assert f"rank 1: {wanted}" in done.stdout
    if (os.cpu_count() or 1) > 1:
        assert done.stderr.count("1 thread: the model is too small") == (given is None)
