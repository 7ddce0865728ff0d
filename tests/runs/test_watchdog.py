"""A rank hangs in the middle of a run: the others say where every rank is, and the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gspo_lightning.core.temp_files import alive
from tests import ROOT
from tests.runs import runs

HANGING = '''
import os
import signal
import time

from lightning.pytorch import Callback


class Hangs(Callback):
    """On rank 1, after the second update."""

    def __init__(self, stopped: bool) -> None:
        self.stopped = stopped

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 2 and trainer.global_rank == 1:
            with open(__file__ + ".pid", "w") as file:
                file.write(str(os.getpid()))
            if self.stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)  # on a network disk that does not answer
'''


@pytest.mark.thorough
@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_rank_that_hangs_is_named_with_its_line_and_not_left_behind(tmp_path: Path, stopped: bool) -> None:
    plugin = tmp_path / "hanging.py"
    plugin.write_text(HANGING)
    argv = [
        sys.executable, "-m", "gspo_lightning", "fit",
        f"--config={runs.QUICKSTART}", "--config=fsdp2", *runs.SMALL, *runs.UNTAUGHT,
        "--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.accelerator=cpu", "--trainer.devices=2",
        "--trainer.strategy.timeout_minutes=0.75", f"--plugins={plugin}", f"--trainer.default_root_dir={tmp_path}",
        f'--trainer.callbacks+={{"class_path": "Hangs", "init_args": {{"stopped": {str(stopped).lower()}}}}}',
    ]  # fmt: skip
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode != 0
    assert "no update and no batch of an evaluation has begun or ended for 40 s" in ended.stderr
    assert "  rank 0: gspo_lightning/" in ended.stderr
    if stopped:
        assert "  rank 1: wrote nothing: it is stopped" in ended.stderr
    else:
        assert "hanging.py:21 in on_train_batch_end: time.sleep(600)" in ended.stderr
        (file,) = tmp_path.rglob("stacks/rank-1.txt")
        assert "Thread watchdog" in file.read_text()
    assert "error: rank 0 cannot continue: another rank has ended" in ended.stderr
    assert not alive(int((tmp_path / "hanging.py.pid").read_text()))
