"""examples/ray_train.py: two workers of Ray are two ranks of torchrun, also where one of them is killed.

Skipped without Ray (``ray[default,train]``); ``tests/examples/test_clusters.py`` tests the example without it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs.test_torchrun import OPTIONS, difference, ended, log_of, start, wait_for_a_checkpoint

pytest.importorskip("ray", reason="needs Ray")
pytestmark = pytest.mark.long


def start_on_ray(root: Path) -> subprocess.Popen[str]:
    """Start two workers on a Ray of their own, in a process group of its own; all log to ROOT.log."""
    given = os.environ | {
        "WORKERS": "2", "DEVICE": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
        "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # no token in the home folder
        "RAY_DEDUP_LOGS": "0",  # every line as often as it is written
        "RAY_worker_niceness": "0",  # Ray takes 15, which starves its workers beside other tests
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "examples" / "ray_train.py"), "quickstart", *OPTIONS]
    command += [f"--trainer.default_root_dir={root}"]
    with log_of(root).open("w") as log:
        return subprocess.Popen(
            command, env=given, cwd=root.parent, stdout=log, stderr=log, text=True, start_new_session=True
        )


def worker_of(rank: int, process: subprocess.Popen[str], log: Path) -> int:
    """The process of a rank, once Ray says in its log that it has started it."""
    pattern, end = re.compile(rf"pid=(\d+)\) world_rank={rank},"), time.monotonic() + 180
    while not (found := pattern.findall(log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return int(found[-1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of torchrun that nothing disturbs."""
    root = tmp_path_factory.mktemp("torchrun") / "whole"
    ended(start(root), log_of(root))
    return root


def test_two_workers_train_the_weights_of_two_ranks(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    said = ended(start_on_ray(root), log_of(root))
    assert difference(whole, root) == 0
    for line in ("no checkpoint in ", "old log-probabilities are ", "8 iterations, 16 updates", "run folder: "):
        assert said.count(line) == 1, said  # of one rank, and not once more by the root logger that Ray installs


def test_a_killed_worker_is_started_again_with_the_other(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "killed"
    process = start_on_ray(root)
    worker = worker_of(1, process, log_of(root))
    wait_for_a_checkpoint(root, process, log_of(root))
    os.kill(worker, signal.SIGKILL)
    assert "resuming from" in ended(process, log_of(root))
    assert difference(whole, root) == 0
