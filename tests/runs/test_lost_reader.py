"""Nobody reads what a run says any more, or its connection is gone: it ends as it should, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.test_one_writer import FEW, LONG, argv, until

LOUD = """
import sys
from gspo_lightning.rewards import Reward

class Loud(Reward):
    def score(self, completion: str) -> float:
        print("x" * 100_000, flush=True)
        print("x" * 100_000, file=sys.stderr, flush=True)
        return len(completion) / 12
"""


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[Path]:
    """A pipe with a name."""
    os.mkfifo(path)
    yield path


def head(path: Path) -> str:
    """``| head -1``: the first line, then nobody reads."""
    with open(path) as reader:
        return reader.readline()


@pytest.mark.thorough
def test_head_on_both_streams_does_not_end_a_run_nor_its_rewards(tmp_path: Path) -> None:
    plugin = tmp_path / "loud.py"
    plugin.write_text(LOUD)
    loud = [f"--plugins={plugin}", '--data.rewards={"loud": "Loud"}']
    with fifo(tmp_path / "pipe") as pipe:
        command = Command(argv(tmp_path, *loud, "--trainer.max_epochs=3"), log=pipe).start()
        assert head(pipe)
        assert command.wait() == [0]
    run = tmp_path / "quickstart" / "version_0"
    assert runs.summary(run)["updates"] == 6
    found = runs.scalars(run)
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4, 5, 6]
    assert {value for _, value in found["reward/missing"]} == {0.0}
    assert runs.checkpoint(run)["global_step"] == 6


@pytest.mark.thorough
def test_head_ends_a_short_command_quietly(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *runs.UNTAUGHT, *FEW, "--trainer.max_epochs=1")
    with fifo(tmp_path / "pipe") as pipe:
        command = Command(["report", str(run)], log=pipe).start()
        with open(pipe):
            pass  # gone before a word is said
        assert command.wait() == [128 + signal.SIGPIPE]
    assert (run / "report.png").exists()


def ignores_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.thorough
def test_a_hangup_leaves_a_checkpoint_and_nohup_goes_on(tmp_path: Path) -> None:
    log, last = tmp_path / "log", tmp_path / "quickstart" / "version_0" / "checkpoints" / "last.ckpt"
    command = Command(argv(tmp_path, LONG), log=log).start()
    until(last.exists, command)
    command.kill(signal.SIGHUP)
    assert command.wait(30) == [129], log.read_text()
    assert "Terminated after" in log.read_text()
    assert "Saved: " in log.read_text()
    step = runs.checkpoint(last.parents[1])["global_step"]
    assert f"Terminated after {step} updates" in log.read_text()
    command = Command(argv(tmp_path, LONG, "--ckpt_path=last"), log=log, prepare=ignores_hangups).start()
    until(newer(last), command)
    command.kill(signal.SIGHUP)
    until(newer(last), command)
    until(newer(last), command)
    command.kill(signal.SIGTERM)
    assert command.wait() == [143], log.read_text()
    found = [at for at, _ in runs.scalars(last.parents[1])["loss"]]
    assert found == list(range(1, len(found) + 1))


def newer(last: Path) -> Callable[[], bool]:
    """Whether there is another checkpoint than now."""
    before = last.resolve()
    return lambda: last.resolve() != before


def controls() -> None:
    """Make the terminal that is written to that of the session."""
    os.close(os.open(os.ttyname(1), os.O_RDWR))


def test_a_terminal_that_is_closed_stops_a_run_with_a_checkpoint(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to the session, and every write to the terminal fails from then on."""
    master, slave = pty.openpty()
    terminal = Path(os.ttyname(slave))
    reader = threading.Thread(target=drain, args=(master,))
    reader.start()
    last = tmp_path / "quickstart" / "version_0" / "checkpoints" / "last.ckpt"
    try:
        command = Command(argv(tmp_path, LONG), log=terminal, prepare=controls).start()
        while not last.exists():
            assert command.processes[0].is_alive()
            time.sleep(0.02)
        os.close(slave)
    finally:
        os.write(master, b"\x00")  # the reader looks up
        STOP.set()
        reader.join()
        os.close(master)
    assert command.wait(30) == [129]
    run = last.parents[1]
    assert runs.checkpoint(run)["global_step"] == [step for step, _ in runs.scalars(run)["loss"]][-1]


STOP = threading.Event()


def drain(master: int) -> None:
    import select

    STOP.clear()
    while not STOP.is_set():
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 1 << 16)


@pytest.mark.long
def test_two_ranks_stop_together_when_their_connection_is_lost(tmp_path: Path) -> None:
    log, last = tmp_path / "log", tmp_path / "quickstart" / "version_0" / "checkpoints" / "last.ckpt"
    two = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    command = Command(argv(tmp_path, LONG, *two), 2, log=log).start()
    until(last.exists, command)
    command.kill(signal.SIGHUP)
    assert command.wait() == [129, 0], log.read_text()
    assert runs.checkpoint(last.parents[1])["global_step"] == [s for s, _ in runs.scalars(last.parents[1])["loss"]][-1]
