"""Ctrl-C, once or twice, at any moment of a save: the old checkpoint or the new one is there, and whole."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from gspo_lightning.cli import main
from gspo_lightning.resume import Manifest, damage, files, find_checkpoint, folders, save_folder
from gspo_lightning.resume.files import DigestWriter
from gspo_lightning.training.callbacks import AtomicCheckpointIO, LastCheckpoint, checkpoints
from tests.runs import runs
from tests.training.reward_models import runs as reward_runs

OPTIONS = [*runs.UNTAUGHT, "--trainer.max_epochs=3", "--data.val=null"]


def pressing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *calls: int) -> None:
    """Ctrl-C as soon as a function is called for the n-th time."""
    own, count = getattr(owner, name), 0

    def pressed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count in calls:
            signal.raise_signal(signal.SIGINT)
        return own(*arguments, **options)

    monkeypatch.setattr(owner, name, pressed)


MOMENTS: dict[str, tuple[Any, str, int]] = {
    "first byte": (DigestWriter, "write", 1),
    "in the middle": (DigestWriter, "write", 60),
    "synced": (files.os, "fsync", 1),
    "swapped in": (files, "sync_folder", 1),
    "its manifest": (Manifest, "write", 1),
    "its link": (checkpoints, "link_last", 1),
    "the old one goes": (LastCheckpoint, "_prune", 1),
}


QUICK = ("in the middle", "its manifest")


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [m if m in QUICK else pytest.param(m, marks=pytest.mark.long) for m in MOMENTS])
@pytest.mark.parametrize("presses", [1, 2])
def test_a_save_that_is_interrupted(
    presses: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second save; a second press comes at the same moment of the save that follows the first one."""
    owner, name, first = MOMENTS[moment]
    save, began = LastCheckpoint.save, 0

    def second(self: LastCheckpoint, trainer: Any, **options: Any) -> Path:
        nonlocal began
        began += trainer.global_step == 4
        if 0 < began <= presses and trainer.global_step == 4:
            with monkeypatch.context() as patch:
                pressing(patch, owner, name, first)
                return save(self, trainer, **options)
        return save(self, trainer, **options)

    monkeypatch.setattr(LastCheckpoint, "save", second)
    run = runs.fit(tmp_path, *OPTIONS, code=130)
    said = capfd.readouterr().err
    assert "Interrupted after 4 updates." in said
    assert "did not expect" not in said
    found = find_checkpoint(run)
    assert found is not None
    last = run / "checkpoints" / "last.ckpt"
    assert damage(last.resolve()) is None
    assert not [file for file in last.parent.iterdir() if "unfinished" in file.name]
    saved = "Saved: " in said
    assert saved or presses == 2
    steps = {torch.load(file, weights_only=True)["global_step"] for file in (last, found.checkpoint)}
    assert steps == {4} if saved else steps <= {2, 4}


def test_a_first_save_that_is_interrupted_twice_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pressing(monkeypatch, DigestWriter, "write", 5, 9)
    run = runs.fit(tmp_path, *OPTIONS, code=130)
    said = " ".join(capfd.readouterr().err.split())
    assert "Interrupted again before this was saved. There is no checkpoint yet." in said
    assert not list((run / "checkpoints").iterdir())


def test_an_older_file_of_the_name_stays_or_is_replaced_with_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback a run may come to a step again."""
    target, io = tmp_path / "step-00000002.ckpt", AtomicCheckpointIO()
    for number, (owner, name, call) in enumerate(list(MOMENTS.values())[:5]):
        io.save_checkpoint({"global_step": 2, "x": torch.zeros(9)}, target)
        with monkeypatch.context() as patch:
            pressing(patch, owner, name, min(call, 3))
            with pytest.raises(KeyboardInterrupt):
                io.save_checkpoint({"global_step": 2, "x": torch.ones(9 + 99 * number)}, target)
        assert damage(target) is None
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert [file.name for file in sorted(tmp_path.iterdir())] == [target.name, f"{target.name}.manifest.json"]


@pytest.mark.parametrize("within", ["torch", "the swap"])
def test_a_folder_of_shards(within: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "step-00000002.ckpt"

    def write(text: str, *, press: bool = False) -> Callable[[Path], None]:
        def writes(folder: Path) -> None:
            folder.mkdir()
            (folder / "meta.pt").write_text(text)
            if press:  # torch catches whatever its writer raises
                raise CheckpointException("failed", {0: (KeyboardInterrupt(), None)})  # type: ignore[dict-item]

        return writes

    save_folder(target, {"global_step": 2}, write("old"), {})
    if within == "the swap":
        pressing(monkeypatch, folders, "replace_folder", 1)
    with pytest.raises(KeyboardInterrupt):
        save_folder(target, {"global_step": 2}, write("new", press=within == "torch"), {})
    assert damage(target) is None
    assert (target / "meta.pt").read_text() == ("old" if within == "torch" else "new")


def test_a_reward_model_that_is_interrupted_while_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train = reward_runs.write(tmp_path / "train.jsonl", reward_runs.planted(23))
    more = [f"--data.val={train}", "--data.batch_size=8", "--trainer.max_epochs=2", "--model.name_or_path=tiny-qwen3"]
    count = 0

    def saved(self: AtomicCheckpointIO, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        nonlocal count
        count += 1
        if count == 2:
            pressing(monkeypatch, DigestWriter, "write", 5)
        own(self, checkpoint, path, storage_options)

    own = AtomicCheckpointIO.save_checkpoint
    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", saved)
    assert main(reward_runs.command(tmp_path / "runs", train, *more)) == 130
    assert "Resume with: --ckpt_path" in capfd.readouterr().err
    found = find_checkpoint(reward_runs.newest(tmp_path / "runs"))
    assert found is not None
    assert not found.skipped
