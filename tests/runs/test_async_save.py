"""Checkpoints that a thread writes while training goes on: the same ones, whatever ends the run meanwhile."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.commands.export import sharded_weights
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.resume import damage
from gspo_lightning.training.callbacks import checkpoints
from gspo_lightning.training.callbacks.async_save import AsyncSave
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_checkpoints import kept, limit_files

OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
OF_SHARDS = [*OPTIONS, "--trainer.max_epochs=4"]
Write = Callable[[dict[str, Any]], None]


def keeping(**options: Any) -> str:
    """Every checkpoint is kept."""
    callback = {"class_path": "LastCheckpoint", "init_args": {"keep_last": 9, **options}}
    return f"--trainer.callbacks+={json.dumps(callback)}"


def leaves(value: Any) -> Any:
    """Tensors as their type and bytes, to compare states exactly."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: leaves(item) for key, item in value.items()}
    return [leaves(item) for item in value] if isinstance(value, list | tuple) else value


def hold(patch: pytest.MonkeyPatch) -> list[str]:
    """A thread writes only when somebody waits for it: an iteration later, or at an end.

    Returns the names of the threads that wrote.
    """
    held: list[threading.Event] = []
    wrote: list[str] = []
    own_start, own_wait = AsyncSave.start, AsyncSave.wait

    def start(self: AsyncSave, checkpoint: dict[str, Any], write: Write) -> None:
        wanted = threading.Event()

        def write_later(copy: dict[str, Any]) -> None:
            wrote.append(threading.current_thread().name)
            assert wanted.wait(60)
            write(copy)

        own_start(self, checkpoint, write_later)
        held[:] = [wanted]

    def wait(self: AsyncSave, seconds: float | None = None) -> bool:
        for wanted in held:
            wanted.set()
        return own_wait(self, seconds)

    patch.setattr(AsyncSave, "start", start)
    patch.setattr(AsyncSave, "wait", wait)
    return wrote


def hold_for_good() -> None:
    """As :func:`hold`, in a process of its own."""
    wrote = hold(pytest.MonkeyPatch())
    own = checkpoints.LastCheckpoint.on_train_end

    def on_train_end(self: checkpoints.LastCheckpoint, *arguments: Any) -> None:
        own(self, *arguments)
        assert wrote == ["checkpoint"] * 3, wrote

    checkpoints.LastCheckpoint.on_train_end = on_train_end  # type: ignore[method-assign]


@pytest.mark.thorough
def test_async_save_writes_the_checkpoints_of_a_synchronous_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*OPTIONS, "--trainer.max_epochs=5", "--model.old_policy=ResidentSnapshot"]
    more += ["--model.old_policy.refresh_every=2"]
    plain = runs.fit(tmp_path / "plain", *more, keeping())
    wrote = hold(monkeypatch)
    run = runs.fit(tmp_path / "async", *more, keeping(async_save=True))
    assert wrote == ["checkpoint"] * 4  # the first one says how large they are
    assert kept(run) == {2, 4, 6, 8, 10}
    for step in kept(run):
        name = f"checkpoints/step-{step:08d}.ckpt"
        assert damage(run / name) is None
        mine, theirs = (torch.load(folder / name, weights_only=True) for folder in (run, plain))
        assert mine.keys() == theirs.keys()
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "loops"):
            assert leaves(mine[part]) == leaves(theirs[part]), part
    assert (run / "checkpoints" / "last.ckpt").resolve().name == "step-00000010.ckpt"
    assert runs.scalars(run) == runs.scalars(plain)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that writes shards while training waits."""
    return fit_on_ranks(tmp_path_factory.mktemp("whole") / "run", *OF_SHARDS, keeping(), overlay="fsdp2")


class Uploads:
    """A follower: of every fourth update, as ``PushToHub``."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def wants(self, step: int) -> bool:
        return step // 4 > (self.seen or [0])[-1] // 4

    def saved(self, path: Path, step: int) -> None:
        assert damage(path) is None
        if self.wants(step):
            self.seen.append(step)


@pytest.mark.thorough
def test_followers_hear_of_an_async_checkpoint_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, own = Uploads(), checkpoints.LastCheckpoint.on_train_start

    def on_train_start(self: checkpoints.LastCheckpoint, *arguments: Any) -> None:
        self.followers.append(follower)
        own(self, *arguments)

    monkeypatch.setattr(checkpoints.LastCheckpoint, "on_train_start", on_train_start)
    monkeypatch.setattr(checkpoints, "SMALL", 0)
    wrote = hold(monkeypatch)
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=7", keeping(async_save=True))
    assert follower.seen == [4, 8, 12]
    assert kept(run) == {2, 4, 8, 12, 14}
    assert len(wrote) == 3


@pytest.mark.thorough
def test_shards_of_two_ranks(tmp_path: Path, whole: Path) -> None:
    run = fit_on_ranks(tmp_path / "async", *OF_SHARDS, keeping(async_save=True), overlay="fsdp2", prepare=hold_for_good)
    assert kept(run) == {2, 4, 6, 8}
    for step in kept(run):
        mine, theirs = (folder / "checkpoints" / f"step-{step:08d}.ckpt" for folder in (run, whole))
        assert damage(mine) is None
        assert runs.largest_difference(sharded_weights(mine), sharded_weights(theirs)) == 0.0


@pytest.mark.thorough("folders:all_gather_objects:4", "folders:synced:5", "manifest:Manifest.write:2")
@pytest.mark.parametrize("moment", ["folders:synced:5", "folders:all_gather_objects:4", "manifest:Manifest.write:2"])
def test_a_rank_is_killed_while_shards_are_written(moment: str, tmp_path: Path, whole: Path) -> None:
    """In the thread, at the second checkpoint: the first one is whole, and the run that goes on is the same."""
    argv = ["fit", f"--config={runs.QUICKSTART}", "--config=fsdp2", *runs.SMALL, "--trainer.accelerator=cpu"]
    argv += [*OF_SHARDS, keeping(async_save=True), "--trainer.devices=2", f"--trainer.default_root_dir={tmp_path}"]
    argv, log = [*argv, "--ckpt_path=last"], tmp_path / "log"
    codes = Command(argv, 2, kill_at=f"gspo_lightning.resume.{moment}", log=log).start().wait()
    assert -signal.SIGKILL in codes, log.read_text()
    (run,) = (tmp_path / "quickstart").iterdir()
    assert kept(run) >= {2}
    assert set(Command(argv, 2, log=log).start().wait()) == {0}, log.read_text()
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0
    assert runs.scalars(run) == runs.scalars(whole)


@pytest.mark.thorough
def test_shards_that_cannot_be_copied_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fit", f"--config={runs.QUICKSTART}", "--config=fsdp", *OPTIONS, "--trainer.accelerator=cpu"]
    argv += ["--trainer.devices=1", f"--trainer.default_root_dir={tmp_path}", keeping(async_save=True)]
    assert main(argv) == 2
    assert "LastCheckpoint.async_save: is true, but shards of FSDPStrategy cannot be copied" in capsys.readouterr().err


@pytest.mark.thorough
def test_ctrl_c_waits_for_an_async_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrote = hold(monkeypatch)
    with runs.interrupted(lambda loader: loader.iteration == 2 and loader.trained == 1):
        run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=5", keeping(async_save=True), code=130)
    assert "Interrupted after 5 updates. Saved: " in capfd.readouterr().err
    assert wrote == ["checkpoint"]
    assert kept(run) == {2, 4, 5}
    assert all(damage(path) is None for path in (run / "checkpoints").glob("step-*.ckpt"))


@pytest.mark.thorough("False")
@pytest.mark.parametrize("hangs", [False, True])
def test_failing_run_completes_its_async_checkpoint_within_a_limit(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes complete, unless that takes too long."""

    def fails(self: Iteration, number: int) -> Experience:
        if number == 2:
            raise InfrastructureError("the server is gone")
        return own(self, number)

    own, blocked = Iteration.run, threading.Event()
    monkeypatch.setattr(Iteration, "run", fails)
    if hangs:
        own_start = AsyncSave.start
        monkeypatch.setattr(
            AsyncSave, "start", lambda self, checkpoint, write: own_start(self, checkpoint, lambda _: blocked.wait())
        )
        monkeypatch.setattr(checkpoints, "PATIENCE_S", 0.2)
    else:
        hold(monkeypatch)
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=4", keeping(async_save=True), code=1)
    blocked.set()
    assert kept(run) == ({2} if hangs else {2, 4})
    last = (run / "checkpoints" / "last.ckpt").resolve()
    assert last.name == f"step-{2 if hangs else 4:08d}.ckpt"
    assert damage(last) is None


@pytest.mark.thorough
def test_full_disk_during_an_async_save_keeps_older_checkpoints(tmp_path: Path) -> None:
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={tmp_path}", *OPTIONS]
    argv += [keeping(async_save=True)]
    assert main([*argv, "--trainer.max_epochs=1"]) == 0
    (run,) = (tmp_path / "quickstart").iterdir()
    log = tmp_path / "log"
    more = ["--trainer.max_epochs=4", "--ckpt_path=last"]
    assert Command([*argv, *more], log=log, prepare=limit_files).start().wait() == [1]
    text = log.read_text()
    assert "cannot be written: File too large; older ones are untouched" in text
    assert "Traceback" not in text
    assert kept(run) == {2}
    assert not [file for file in (run / "checkpoints").iterdir() if "unfinished" in file.name]


@pytest.mark.thorough
def test_without_room_for_a_copy_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrote = hold(monkeypatch)
    monkeypatch.setattr(checkpoints, "free_memory", lambda device: 1000)
    assert kept(runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=3", keeping(async_save=True))) == {2, 4, 6}
    assert wrote == []
    (said,) = (r.getMessage() for r in caplog.records if "async_save" in r.getMessage())
    assert said.endswith("0.0 GB are free: training waits for every checkpoint")
