"""A run folder has one writer, whoever starts a second one and however the first one ended; readers are not held up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import Writer, claim_version, damage
from gspo_lightning.training.callbacks import AtomicCheckpointIO
from tests.runs import runs
from tests.runs.processes import SERVER, Command, in_processes

FEW = ["--data.val=null", "--trainer.num_sanity_val_steps=0"]
LONG = "--trainer.max_epochs=100000"
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]


def argv(root: Path, *more: str, command: str = "fit") -> list[str]:
    options = [*runs.SMALL, *runs.UNTAUGHT, "--trainer.accelerator=cpu", f"--trainer.default_root_dir={root}"]
    return [command, f"--config={runs.QUICKSTART}", *options, *(FEW if command == "fit" else []), *more]


def until(found: object, command: Command, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not found():  # type: ignore[operator]
        assert any(p.is_alive() for p in command.processes), command.log.read_text()
        assert time.monotonic() < end, command.log.read_text()
        time.sleep(0.02)


@pytest.fixture
def living(tmp_path: Path) -> Iterator[tuple[Path, Command]]:
    """A run that has a checkpoint and trains on; its folder, and its process."""
    command = Command(argv(tmp_path, LONG), log=tmp_path / "living.log").start()
    run = tmp_path / "quickstart" / "version_0"
    try:
        until((run / "checkpoints" / "last.ckpt").exists, command)
        yield run, command
    finally:
        command.kill()
        command.wait()


def run_files(run: Path) -> dict[str, int]:
    """What a second writer would add to: configs and event files."""
    return {f.name: f.stat().st_ino for f in run.glob("*") if f.is_file() and f.name != "report.png"}


@pytest.mark.thorough
def test_a_second_fit_is_refused_and_readers_are_not(living: tuple[Path, Command], tmp_path: Path) -> None:
    run, command = living
    pid, before, log = command.processes[0].pid, run_files(run), tmp_path / "second.log"
    half = run / "checkpoints" / f".step-99999999.ckpt.{os.uname().nodename}.{pid}.unfinished"
    half.touch()  # what the living run is writing
    for last in ("last", str(run / "checkpoints" / "last.ckpt")):
        assert Command(argv(tmp_path, LONG, f"--ckpt_path={last}"), log=log).start().wait() == [2], log.read_text()
    text = log.read_text()
    message = (
        rf"error: ckpt_path: the run {run} is being written by another fit: process {pid} on \S+, since 20.*\n  fix: "
    )
    assert len(re.findall(message, text)) == 2, text
    assert "Traceback" not in text
    assert half.exists()
    assert run_files(run) == before  # no event file, no config, nothing else of a second writer
    read = Command(argv(tmp_path, "--ckpt_path=last", command="validate"), log=log).start().wait()
    assert read == [0], log.read_text()
    assert Command(["report", str(run)], log=log).start().wait() == [0], log.read_text()
    exported = Command(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "exported")], log=log)
    assert exported.start().wait() == [0], log.read_text()
    assert command.processes[0].is_alive()
    half.unlink()
    command.kill(signal.SIGTERM)
    assert command.wait() == [143], command.log.read_text()
    steps = [step for step, _ in runs.scalars(run)["loss"]]
    assert steps == sorted(set(steps))  # no update twice
    assert sorted(p.name for p in (tmp_path / "quickstart").iterdir()) == ["version_0"]


@pytest.mark.thorough
def test_a_kill_leaves_nothing_stale_and_its_half_files_go(living: tuple[Path, Command], tmp_path: Path) -> None:
    run, command = living
    command.kill()
    command.wait()
    pid, here = command.processes[0].pid, os.uname().nodename
    dead = run / "checkpoints" / f".step-99999999.ckpt.{here}.{pid}.unfinished"
    other = run / "checkpoints" / f".step-99999999.ckpt.{here}.{os.getpid()}.unfinished"
    for file in (dead, other):
        file.touch()
    updates = runs.checkpoint(run)["global_step"] + 2
    again = argv(tmp_path, f"--trainer.max_epochs={updates // 2}", "--ckpt_path=last")
    assert Command(again, log=command.log).start().wait() == [0], command.log.read_text()
    assert runs.checkpoint(run)["global_step"] >= updates - 1
    assert not dead.exists()
    assert other.exists()  # this process lives


@pytest.mark.thorough
def test_two_fits_at_the_same_moment_get_two_folders(tmp_path: Path) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    both = [Command(argv(tmp_path, "--trainer.max_epochs=1"), log=log).start() for log in logs]
    assert [command.wait() for command in both] == [[0], [0]], [log.read_text() for log in logs]
    found = sorted((tmp_path / "quickstart").iterdir())
    assert [f.name for f in found] == ["version_0", "version_1"]
    for run in found:
        assert [step for step, _ in runs.scalars(run)["loss"]] == [1, 2]
        assert len(list(run.glob("events.*"))) == 1


def _claim(number: int, folder: str) -> None:
    """In a process of its own: new versions, as fast as another process makes some."""
    root = Path(folder)
    mine = [claim_version(root / "runs", lambda: len(list((root / "runs").iterdir()))) for _ in range(100)]
    (root / f"mine-{number}").write_text(json.dumps(mine))


def test_no_version_is_given_twice(tmp_path: Path) -> None:
    in_processes(_claim, str(tmp_path))
    given = [number for file in tmp_path.glob("mine-*") for number in json.loads(file.read_text())]
    assert sorted(given) == list(range(200))


@pytest.mark.thorough
def test_of_two_simultaneous_resumes_one_is_refused(tmp_path: Path) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, *FEW, "--trainer.max_epochs=1")
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    more = ["--trainer.max_epochs=20", "--ckpt_path=last"]
    both = [Command(argv(tmp_path, *more), log=log).start() for log in logs]
    assert sorted(code or 0 for command in both for code in command.wait()) == [0, 2], [log.read_text() for log in logs]
    run = tmp_path / "quickstart" / "version_0"
    assert [step for step, _ in runs.scalars(run)["loss"]] == list(range(1, 41))


@pytest.mark.thorough
def test_two_ranks_share_the_lock_and_learn_of_a_refusal_together(living: tuple[Path, Command], tmp_path: Path) -> None:
    run, _ = living
    log, before = tmp_path / "ranks.log", run_files(run)
    refused = Command(argv(tmp_path, *TWO, LONG, "--ckpt_path=last", "--allow_changed_config=true"), 2, log=log).start()
    assert refused.wait(120) == [2, 2], log.read_text()
    assert "is being written by another fit: process" in log.read_text()
    assert run_files(run) == before
    fresh = Command(argv(tmp_path, *TWO, "--trainer.max_epochs=1"), 2, log=log).start()
    assert fresh.wait(120) == [0, 0], log.read_text()
    assert [f.name for f in sorted((tmp_path / "quickstart").iterdir())] == ["version_0", "version_1"]


@pytest.mark.thorough
def test_the_lock_ends_with_the_command_however_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*runs.UNTAUGHT, *FEW]
    run = runs.fit(tmp_path, *options, "--trainer.max_epochs=1")
    again = [*options, "--trainer.max_epochs=2", "--ckpt_path=last"]
    runs.fit(tmp_path, *again, "--data.temperature=0.7", code=2)  # refused after the lock was taken
    with Writer() as other:  # another fit in this process
        other.enter(run)
        runs.fit(tmp_path, *again, code=2)
        assert f"process {os.getpid()} on " in capsys.readouterr().err
    runs.fit(tmp_path, *again)
    assert not (run / ".lock.json").exists()


def _trainer(folder: str) -> None:
    """In a process of its own: takes the lock, starts a server and forks a worker, and waits to be killed."""
    root, writer = Path(folder), Writer()
    writer.enter(root)
    server = subprocess.Popen(["sleep", "60"])
    if (worker := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    (root / "children").write_text(f"{server.pid} {worker}")
    time.sleep(60)


def test_children_of_a_killed_trainer_do_not_hold_its_lock(tmp_path: Path) -> None:
    """A server or a worker that is still there, started by exec or by fork, when the trainer is killed."""
    trainer, children = SERVER.Process(target=_trainer, args=(str(tmp_path),)), tmp_path / "children"
    trainer.start()
    while not (children.exists() and children.read_text()):
        assert trainer.is_alive()
        time.sleep(0.02)
    with Writer() as writer, pytest.raises(UserError, match=f"process {trainer.pid} on"):
        writer.enter(tmp_path)
    trainer.kill()
    trainer.join()
    try:
        with Writer() as writer:
            writer.enter(tmp_path)
            assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
    finally:
        for pid in map(int, children.read_text().split()):
            os.kill(pid, signal.SIGKILL)


def test_a_file_system_without_locks_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import errno
    import fcntl

    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # NFS without its lock daemon

    monkeypatch.setattr(fcntl, "flock", refuses)
    runs.fit(tmp_path, *runs.UNTAUGHT, *FEW, "--trainer.max_epochs=1")
    assert "file system without locks (No locks available)" in capsys.readouterr().err


def _save(number: int, folder: str, times: int) -> None:
    """In a process of its own: the same path as the other one, again and again."""
    path, saver = Path(folder) / "a.ckpt", AtomicCheckpointIO()
    content = {"global_step": number, "state_dict": {"w": torch.full((50_000,), float(number))}}
    for _ in range(times):
        saver.save_checkpoint(content, path)


def test_two_writers_of_one_path_both_save_and_what_is_left_is_whole(tmp_path: Path) -> None:
    in_processes(_save, str(tmp_path), 40)
    assert damage(tmp_path / "a.ckpt") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ckpt", "a.ckpt.manifest.json"]
