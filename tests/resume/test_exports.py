"""A folder of an export takes the place of an older one in one step, and of nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import exports, files
from gspo_lightning.resume.exports import MARK, check_replaceable, exported_folder
from tests.resume.test_files import in_a_fork

NAMES = ("config.json", "model.safetensors")


def write(target: Path, text: str) -> None:
    with exported_folder(target, []) as folder:
        (folder / "more").mkdir(parents=True)
        for name in (*NAMES, "more/a.json"):
            (folder / name).write_text(text)


def content(target: Path) -> str:
    """Of all its files, which are those of one export."""
    assert {str(p.relative_to(target)) for p in target.rglob("*")} == {*NAMES, "more", "more/a.json", MARK}
    found = {(target / name).read_text() for name in (*NAMES, "more/a.json")}
    assert len(found) == 1
    return found.pop()


def test_an_export_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    write(target, "old")
    write(target, "new")
    assert content(target) == "new"
    assert [p.name for p in target.parent.iterdir()] == ["out"]


def test_an_exception_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write(target, "old")

    def interrupted() -> None:
        with exported_folder(target, []) as folder:
            folder.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(target) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_system_that_cannot_exchange_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename, done = tmp_path / "out", os.rename, []
    write(target, "old")
    monkeypatch.setattr(files, "_exchange", lambda *_: False)

    def second_fails(one: Path, other: Path) -> None:
        done.append(one)
        if len(done) == 2:
            raise KeyboardInterrupt
        rename(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        with pytest.raises(KeyboardInterrupt):
            write(target, "new")
    assert content(target) == "old"
    write(target, "new")
    assert content(target) == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["sync_tree", "replace_folder", "_exchange", "sync_folder", "remove"])
def test_a_kill_leaves_the_old_or_the_new(
    step: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    write(target, "old")

    def killed(own: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Path, *rest: Any) -> Any:
            found = own(path, *rest) if after else None
            os.kill(os.getpid(), signal.SIGKILL)
            return found

        return run

    def export() -> None:
        room = exports if step in ("sync_tree", "replace_folder") else files
        setattr(room, step, killed(getattr(room, step)))
        write(target, "new")

    assert in_a_fork(export) == -signal.SIGKILL
    swapped = step in ("sync_folder", "remove") or (after and step in ("_exchange", "replace_folder"))
    assert content(target) == ("new" if swapped else "old")
    write(target, "newest")
    assert content(target) == "newest"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # what the killed one left is gone


def test_every_file_is_on_the_disk_before_the_swap_and_the_swap_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, exchange = os.fsync, files._exchange

    def synced(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def exchanged(one: Path, other: Path) -> bool:
        events.append("swap")
        return exchange(one, other)

    write(tmp_path / "out", "old")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(files, "_exchange", exchanged)
    write(tmp_path / "out", "new")
    place = events.index("swap")
    folder = next(name for name in events if name.endswith(".unfinished"))
    assert sorted(events[:place]) == sorted([*NAMES, MARK, "more", "a.json", folder])
    assert events[place + 1 :] == [tmp_path.name]


def test_a_link_keeps_leading_to_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "first", "old")
    (tmp_path / "latest").symlink_to("first")
    write(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink()
    assert content(tmp_path / "first") == "new"


def refused(target: Path, *sources: Path) -> str:
    before = sorted(str(p) for p in target.rglob("*"))
    with pytest.raises(UserError) as caught:
        check_replaceable(target, sources)
    assert sorted(str(p) for p in target.rglob("*")) == before
    return str(caught.value)


def test_export_never_replaces_files_that_no_export_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(out, "old")
    assert "holds a.ckpt" not in refused(tmp_path)
    (out / "notes.txt").touch()
    assert f"{out} holds notes.txt, which no export wrote\n" in refused(out)
    (out / "empty").mkdir()
    assert f"{out} holds empty, which no export wrote, and 1 more\n" in refused(out)
    (out / "notes.txt").unlink()
    (out / "empty").rmdir()
    check_replaceable(out, [tmp_path / "elsewhere", tmp_path])
    for needed in (out, out / "config.json"):
        assert f"{out} is or holds {needed}, and would be deleted" in refused(out, needed)
    (out / "config.json").unlink()
    (out / "config.json").symlink_to(tmp_path / "model")  # the link is what would be lost
    (tmp_path / "model").touch()
    assert "is or holds" in refused(out, out / "config.json")
    for folder, name in ((out, "the working directory"), (out / "more", "the working directory")):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            assert name in refused(out)
    monkeypatch.setenv("HOME", str(out / "more"))
    assert "your home directory" in refused(out)
    assert "is a file" in refused(tmp_path / "model")
    (tmp_path / "bare").mkdir()
    check_replaceable(tmp_path / "bare", [])  # nothing is in it


def test_an_export_from_before_there_were_lists(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "report.png"):
        (out / name).touch()
    assert f"{out} was not written by gspo export" in refused(out)
    (out / "README.md").write_text("---\nlibrary_name: transformers\ntags:\n- other\n---\n- gspo_lightning\n")
    assert "was not written by" in refused(out)
    (out / "README.md").write_text("---\nlibrary_name: transformers\ntags:\n- reward-model\n- gspo_lightning\n---\nx\n")
    check_replaceable(out, [])
    (out / "thesis.tex").touch()
    assert "holds thesis.tex" in refused(out)
    (out / "thesis.tex").unlink()
    (out / MARK).write_text(json.dumps({"files": 1}))  # of somebody else
    assert f"holds {MARK}" in refused(out)
