"""examples/torchrun.sh: torchrun starts all ranks again after a SIGKILL; without a node, those that are left go on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gspo_lightning.commands.export import sharded_weights
from gspo_lightning.commands.fit.torchrun import follow_torchrun
from gspo_lightning.core.errors import UserError
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import free_port

OPTIONS = [
    *runs.SMALL, *runs.UNTAUGHT, "--trainer.accelerator=cpu", "--trainer.max_epochs=8", "--data.val=null",
    "--trainer.num_sanity_val_steps=0",
]  # fmt: skip


def start(root: Path, node: str = "", *options: str, **variables: str) -> subprocess.Popen[str]:
    """Start a node, in a process group of its own; it logs to ROOT.log, or ROOT-NODE.log."""
    given = os.environ | {
        "DEVICES": "2", "PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PET_LOCAL_ADDR": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    } | variables  # fmt: skip
    command = [str(ROOT / "examples" / "torchrun.sh"), "quickstart", *OPTIONS, f"--trainer.default_root_dir={root}"]
    command += options
    with log_of(root, node).open("w") as log:
        return subprocess.Popen(command, env=given, cwd=ROOT, stdout=log, stderr=log, text=True, start_new_session=True)


def log_of(root: Path, node: str = "") -> Path:
    return root.with_name(f"{root.name}-{node}.log" if node else f"{root.name}.log")


def wait_for_port(port: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.1)


def ended(process: subprocess.Popen[str], log: Path) -> str:
    try:
        code = process.wait(300)
    finally:
        process.kill()
    said = log.read_text()
    assert code == 0, said
    return said


def wait_for_a_checkpoint(root: Path, process: subprocess.Popen[str], log: Path, after: str = "") -> None:
    """Wait for a checkpoint of a name above this one."""
    end = time.monotonic() + 120
    while not any(path.name > after for path in root.rglob("step-*.manifest.json")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def rank_of(root: Path, rank: int) -> int:
    """The process of a rank."""
    for folder in (folder for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        if str(root).encode() not in (folder / "cmdline").read_bytes():
            continue
        if f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
            return int(folder.name)
    raise AssertionError(f"no process has rank {rank}")


def test_a_store_that_is_not_cleared_is_refused() -> None:
    trainer = {"num_nodes": 4, "devices": 2}
    variables = {"TORCHELASTIC_RUN_ID": "one", "GROUP_WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "8"}
    follow_torchrun(trainer, {})
    assert trainer == {"num_nodes": 4, "devices": 2}
    follow_torchrun(trainer, variables | {"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert trainer == {"num_nodes": 3, "devices": 8}
    with pytest.raises(UserError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        follow_torchrun(trainer, variables | {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    root = tmp_path_factory.mktemp("torchrun") / "whole"
    ended(start(root), log_of(root))
    return root


def difference(one: Path, other: Path) -> float:
    """The largest difference of weights between the last checkpoints of two folders with one run each."""
    (first,), (second,) = one.rglob("last.ckpt"), other.rglob("last.ckpt")
    return runs.largest_difference(sharded_weights(first), sharded_weights(second))


needs_torchrun = pytest.mark.skipif(
    shutil.which("torchrun", path=Path(sys.executable).parent) is None, reason="no torchrun"
)


@pytest.mark.thorough
@needs_torchrun
def test_a_rank_that_is_killed_is_started_again_with_all_others(whole: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed)
    wait_for_a_checkpoint(killed, process, log_of(killed))
    os.kill(rank_of(killed, 1), signal.SIGKILL)
    said = ended(process, log_of(killed))
    assert "failed (exitcode: -9) local_rank: 1" in said
    assert "resuming from" in said
    assert difference(whole, killed) == 0


def two_nodes(root: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Start a run on two nodes, and kill the second one with its rank behind a checkpoint; return the first one."""
    shared = {
        "NODES": "1:2", "DEVICES": "1", "PORT": str(free_port()),
        "PET_RDZV_CONF": "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
    }  # fmt: skip
    first = start(root, "first", *options, **shared)
    wait_for_port(int(shared["PORT"]), 60)  # of the first node: it keeps the addresses of all
    second = start(root, "second", *options, **shared)
    wait_for_a_checkpoint(root, first, log_of(root, "first"))
    (lost,) = Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split()
    second.kill()
    os.kill(int(lost), signal.SIGKILL)
    second.wait()
    return first, shared


@pytest.mark.long
@needs_torchrun
def test_the_nodes_that_are_left_go_on_without_a_lost_one(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    first, _ = two_nodes(root)
    said = ended(first, log_of(root, "first"))
    assert "MEMBER: 1/2" in said
    assert "MEMBER: 1/1" in said
    assert "resuming from" in said
    assert difference(whole, root) < 1e-5


@pytest.mark.thorough
@needs_torchrun
def test_a_node_that_comes_back_joins_the_run(tmp_path: Path) -> None:
    """The ranks stop in the middle of an iteration, most likely, from where only as many ranks could go on."""
    root, endless = tmp_path / "run", ["--trainer.max_epochs=100000", "--data.minibatches_per_rollout=4"]
    first, shared = two_nodes(root, *endless)
    log, end = log_of(root, "first"), time.monotonic() + 120
    while "MEMBER: 1/1" not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    alone = max(path.name for path in root.rglob("step-*.manifest.json"))
    wait_for_a_checkpoint(root, first, log, alone)
    back = start(root, "back", *endless, **shared)
    try:
        while "MEMBER: 2/2" not in log_of(root, "back").read_text():
            assert back.poll() is None, log_of(root, "back").read_text()
            assert time.monotonic() < end + 120, log.read_text()
            time.sleep(0.1)
        together = max(path.name for path in root.rglob("step-*.manifest.json"))
        wait_for_a_checkpoint(root, first, log, together)
    finally:
        for node in (first, back):
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGTERM)
            node.wait(60)
    said = log.read_text()
    assert [line[-3:] for line in said.splitlines() if "MEMBER" in line] == ["1/2", "1/1", "1/2"]
    resumed = next(line for line in said.split("MEMBER: 1/1")[1].splitlines() if "resuming from" in line)
    stopped = int(re.findall(r"Terminated after (\d+) updates", said)[0])
    assert ("(in the middle of an iteration of 1 ranks)" in resumed) == (stopped % 4 > 0)
    assert f"step-{stopped - stopped % 4:08d}.ckpt" in resumed
