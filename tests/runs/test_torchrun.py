"""examples/torchrun.sh: a rank is SIGKILLed, torchrun starts all of them again, and the run ends as if nothing was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gspo_lightning.commands.export import sharded_weights
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import free_port

OPTIONS = [
    *runs.SMALL, *runs.UNTAUGHT, "--trainer.accelerator=cpu", "--trainer.max_epochs=4", "--data.val=null",
    "--trainer.num_sanity_val_steps=0",
]  # fmt: skip


def start(root: Path) -> subprocess.Popen[str]:
    variables = os.environ | {
        "DEVICES": "2", "PORT": str(free_port()), "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    command = [ROOT / "examples" / "torchrun.sh", "quickstart", *OPTIONS, f"--trainer.default_root_dir={root}"]
    with root.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, env=variables, cwd=ROOT, stdout=log, stderr=log, text=True)


def ended(process: subprocess.Popen[str], root: Path) -> str:
    try:
        code = process.wait(300)
    finally:
        process.kill()
    said = root.with_suffix(".log").read_text()
    assert code == 0, said
    return said


def rank_of(root: Path, rank: int) -> int:
    """The process of a rank."""
    for folder in (folder for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        if str(root).encode() not in (folder / "cmdline").read_bytes():
            continue
        if f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
            return int(folder.name)
    raise AssertionError(f"no process has rank {rank}")


@pytest.mark.skipif(shutil.which("torchrun", path=Path(sys.executable).parent) is None, reason="no torchrun")
def test_a_rank_that_is_killed_is_started_again_with_all_others(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended(start(whole), whole)
    process = start(killed)
    end = time.monotonic() + 120
    while not list(killed.rglob("step-*.manifest.json")):
        assert process.poll() is None, killed.with_suffix(".log").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(rank_of(killed, 1), signal.SIGKILL)
    said = ended(process, killed)
    assert "another rank has ended, killed" in said
    assert "resuming from" in said
    (one,), (other,) = whole.rglob("last.ckpt"), killed.rglob("last.ckpt")  # one run folder each
    assert runs.largest_difference(sharded_weights(one), sharded_weights(other)) == 0
