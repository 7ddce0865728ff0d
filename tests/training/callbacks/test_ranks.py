"""Ranks that do not end with a failed run are ended when its first process exits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gspo_lightning.core.temp_files import alive
from tests import ROOT

PROGRAM = """
import os, signal, subprocess, sys, threading, time
from gspo_lightning.training.callbacks import ranks

ranks.PATIENCE_S = 1.0
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if sys.argv[1] == "stopped":
    os.kill(rank.pid, signal.SIGSTOP)
ranks._LEFT.append(rank)
threading.Thread(target=ranks.WatchRanks()._watch, args=(1, rank, [rank]), daemon=True).start()
print(rank.pid)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stopped", "waiting"])
def test_a_rank_is_not_left_behind(how: str) -> None:
    argv = [sys.executable, "-c", PROGRAM, how]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert not alive(int(ended.stdout))
    assert ended.stderr == ""  # not that somebody else has killed it
