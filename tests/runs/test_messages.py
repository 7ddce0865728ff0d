"""What a run says is seen once, also where the root logger writes to the terminal, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs import runs

PROGRAM = """
import logging, sys
if sys.argv[1] == "root":
    logging.basicConfig(format="root: %(message)s")  # before Lightning is imported, as in a worker of Ray
from gspo_lightning.cli import main
sys.exit(main(sys.argv[2:]))
"""
OPTIONS = [
    *runs.SMALL, *runs.UNTAUGHT, "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.max_epochs=1",
    "--data.val=null", "--trainer.num_sanity_val_steps=0", "--ckpt_path=last",
]  # fmt: skip
MESSAGES = {"of this package": "no checkpoint in ", "of Lightning": "Initializing distributed: GLOBAL_RANK: 0"}


@pytest.mark.parametrize("shown_by", ["root", "package"])
def test_a_message_is_seen_once(shown_by: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, shown_by, "fit", "--config=quickstart", "--config=fsdp2", *OPTIONS]
    command += [f"--trainer.default_root_dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for origin, message in MESSAGES.items():
        lines = [line for line in done.stderr.splitlines() if message in line]
        assert len(lines) == 1, (origin, lines)
        assert lines[0].startswith("root: ") == (shown_by == "root"), (origin, lines)
