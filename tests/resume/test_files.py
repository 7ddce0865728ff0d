"""A file is there whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gspo_lightning.core.temp_files import sweep, temp_path
from gspo_lightning.resume.files import atomic_file, sha256, write_text


def test_content_and_digest(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as file:
        file.write(b"abc")
        file.write(b"def")
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    assert (file.bytes, file.sha256) == (6, hashlib.sha256(b"abcdef").hexdigest())
    assert sha256(tmp_path / "file") == file.sha256


def test_no_folder_is_made(tmp_path: Path) -> None:
    """One that is missing was deleted or moved."""
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "run" / "file", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, kind: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def interrupted() -> None:
        with atomic_file(target) as file:
            file.write(b"new")
            raise kind

    with pytest.raises(kind):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def in_a_fork(function: Callable[[], object]) -> int:
    """Its exit code; the process has what this one has imported."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            with atomic_file(target) as file:
                for _ in range(100):
                    file.write(b"x" * 300)
        except OSError as error:
            sys.exit(error.errno)

    assert in_a_fork(fill) == errno.EFBIG
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000  # the limit was the other process's


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def die() -> None:
        with atomic_file(target) as file:
            file.write(b"new" * 100000)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_fork(die) == -signal.SIGKILL
    assert target.read_text() == "old"


def test_no_folder_to_write_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file" / "below", "text")


@pytest.fixture
def everybody() -> Iterator[None]:
    """What is made is everybody's, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("everybody")
def test_a_private_file_is_this_users_alone_from_its_first_byte_on(tmp_path: Path) -> None:
    target = tmp_path / "file"
    temp_path(target).write_text("of a run that was killed")
    assert mode(temp_path(target)) == 0o666
    with atomic_file(target, private=True) as file:
        assert mode(temp_path(target)) == 0o600
        file.write(b"new")
    assert (mode(target), target.read_text()) == (0o600, "new")
    with atomic_file(target) as file:
        file.write(b"public")
    assert mode(target) == 0o666


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_unfinished_file_of_a_zombie_process_is_swept(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    theirs = tmp_path / f".a.ckpt.{os.uname().nodename}.{process.pid}.unfinished"
    mine = temp_path(tmp_path / "a.ckpt")
    for file in (theirs, mine):
        file.touch()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]
    process.wait()
