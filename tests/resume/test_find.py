"""Which run and which checkpoint ``last`` means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import (
    Manifest,
    Resumption,
    Writer,
    atomic_file,
    damage,
    find_checkpoint,
    manifest_path,
    manifests,
    newest_run,
)
from tests.support.unreadable import unreadable


def write(run: Path, step: int, serial: int | None = None) -> Path:
    path = run / "checkpoints" / f"step-{step:08d}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        torch.save({"global_step": step, "state_dict": {}}, file)
    Manifest({path.name: (file.bytes, file.sha256)}, step, step if serial is None else serial).write(path)
    return path


def test_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        write(tmp_path, step)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.checkpoint.name, found.skipped) == ("step-00000006.ckpt", [])
    assert [m.step for _, m in manifests(tmp_path / "checkpoints")] == [6, 4, 2]


def test_newest_is_what_was_written_last_not_what_got_furthest(tmp_path: Path) -> None:
    write(tmp_path, 8, serial=1)
    resumed = write(tmp_path, 6, serial=2)  # someone went back to an older checkpoint and goes on from there
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.checkpoint == resumed


def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 4).write_bytes(b"")
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.checkpoint.name == "step-00000002.ckpt"
    assert "skipped step-00000004.ckpt (torn: 0 of" in str(found)
    assert "\n" not in str(found)


def test_a_directory_of_shards_is_checked_file_by_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-00000002.ckpt"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"22")
    digest = __import__("hashlib").sha256
    files = {f"{folder.name}/{n}": (len(d), digest(d).hexdigest()) for n, d in (("a", b"1"), ("b", b"22"))}
    Manifest(files, 2, 1).write(folder)
    assert damage(folder) is None
    (folder / "b").unlink()
    assert damage(folder) == "step-00000002.ckpt/b is missing"


def test_nothing_whole_is_an_error_that_says_why(tmp_path: Path) -> None:
    write(tmp_path, 2).write_bytes(b"x")
    with pytest.raises(UserError, match=r"step-00000002.ckpt: torn: 1 of"):
        find_checkpoint(tmp_path)


def test_no_checkpoint_at_all_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert find_checkpoint(tmp_path) is None


def test_a_first_checkpoint_that_was_killed_before_its_manifest_is_none_yet(tmp_path: Path) -> None:
    first = write(tmp_path, 2)
    manifest_path(first).unlink()
    assert find_checkpoint(tmp_path) is None
    (first.parent / "last.ckpt").symlink_to(first.name)  # it was finished once: somebody has lost its manifest
    with pytest.raises(UserError, match="incomplete: it has no manifest"):
        find_checkpoint(tmp_path)
    (first.parent / "last.ckpt").unlink()
    manifest_path(write(tmp_path, 4)).unlink()
    with pytest.raises(UserError, match="incomplete: it has no manifest"):
        find_checkpoint(tmp_path)


def test_the_newest_run_goes_on_even_before_its_first_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "version_9", 2)
    (tmp_path / "version_9" / "summary.json").write_text("{}")  # finished
    (tmp_path / "version_10").mkdir()
    assert newest_run(tmp_path) == tmp_path / "version_10"


def test_an_unfinished_run_with_checkpoints_comes_before_one_without(tmp_path: Path) -> None:
    write(tmp_path / "version_0", 2)
    (tmp_path / "version_1").mkdir()
    assert newest_run(tmp_path) == tmp_path / "version_0"


def test_only_training_may_start_over(tmp_path: Path) -> None:
    start = Resumption.of("last", tmp_path, writer=Writer())
    assert (start.path, start.run) == (None, None)
    with pytest.raises(UserError, match="no run in"):
        Resumption.of("last", tmp_path, writer=None)


def test_a_path_is_verified_if_it_has_a_manifest(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    assert Resumption.of(str(path), tmp_path, writer=None).first_step == 5
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="checksum"):
        Resumption.of(str(path), tmp_path, writer=None)


def test_a_checkpoint_that_may_not_be_read_is_not_passed_over_as_damaged(tmp_path: Path) -> None:
    write(tmp_path, 2)
    newest = write(tmp_path, 4)
    for denied in (newest, manifest_path(newest)):
        with unreadable(denied), pytest.raises(UserError, match="may not be read: Permission denied"):
            find_checkpoint(tmp_path)
