"""What the hostile programs are aimed at: files, listeners and an environment variable of the test."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.rewards.sandbox import Kind
from gspo_lightning.rewards.sandbox.launch import NOBODY
from gspo_lightning.rewards.sandbox.probe import Trial, trials


@pytest.fixture(scope="session")
def working() -> dict[Kind, Trial]:
    """The kinds of isolation that work here, each with the first interpreter that it works with."""
    found: dict[Kind, Trial] = {}
    for trial in trials():
        if trial.works:
            found.setdefault(trial.kind, trial)
    return found


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Not under /tmp: a program sees a /tmp of its own even without the layer that hides files."""
    folder = Path(tempfile.mkdtemp(prefix="gspo-target-", dir="/var/tmp"))
    monkeypatch.setenv("GSPO_TEST_SECRET", "secret")
    for name in ("secret", "scratch"):
        (folder / name).write_text("secret")
        (folder / name).chmod(0o666)
    folder.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(folder / "scratch", NOBODY, NOBODY)
    abstract = folder.name
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        udp.bind(("127.0.0.1", 0))
        named.bind(str(folder / "socket"))
        named.listen()
        (folder / "socket").chmod(0o777)
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        yield {
            "folder": str(folder),
            "secret": str(folder / "secret"),
            "scratch": str(folder / "scratch"),
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "outside": os.getpid(),
        }
    shutil.rmtree(folder)
