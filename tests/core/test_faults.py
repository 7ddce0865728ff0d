"""Which exceptions are faults around a command, and which are not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.faults import fault_around, has_lost_a_rank, written

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] "


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x.png"), InfrastructureError, "device: x.png; checkpoints"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), InfrastructureError, "No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), UserError, "/etc/x: cannot be used: Permission"),
        (RuntimeError(GLOO + "Connection closed by peer [127.0.0.1]:9"), InfrastructureError, "another rank has ended"),
        (RuntimeError("Application timeout caused pair closure"), InfrastructureError, "another rank has ended"),
        (RuntimeError(GLOO + "Read error [::1]:9: Connection reset by peer"), InfrastructureError, "another rank"),
        (FileNotFoundError(2, "No such file", b"/no/such/file"), InfrastructureError, "the folder /no is gone"),
        (MemoryError(), InfrastructureError, "memory ran out: MemoryError; checkpoints that were finished are whole."),
        (MemoryError("3 GiB"), InfrastructureError, "memory ran out: 3 GiB;"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), InfrastructureError, "memory ran out"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), InfrastructureError, "memory ran out: CUDA out of"),
    ],
)
def test_disk_memory_and_rank_faults_are_named(error: Exception, kind: type[Exception], word: str) -> None:
    found = fault_around(error)
    assert type(found) is kind
    assert word in str(found)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        FileNotFoundError(2, "No such file", "/no-such-file"),  # its folder is there
        FileNotFoundError(2, "No such file", "no/such/file"),
        RuntimeError("No such file or directory (os error 2)"),
        RuntimeError(GLOO + "op.preamble.length <= op.nbytes. 8 vs 4"),  # ranks that are out of step are a bug
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),  # a server's
    ],
)
def test_other_exceptions_are_not_taken_for_faults(error: Exception) -> None:
    assert fault_around(error) is None


def test_handled_exception_is_not_reported_as_the_fault() -> None:
    """A mistake of this package that shows where something was refused, and expected to be."""

    def after_a_refusal() -> None:
        try:
            raise PermissionError(errno.EACCES, "Permission denied", "/etc/x")
        except PermissionError:
            {}["x"]

    with pytest.raises(KeyError) as caught:
        after_a_refusal()
    assert fault_around(caught.value) is None
    assert not has_lost_a_rank(caught.value)


def test_partial_output_folder_is_removed_after_any_exception(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def write(error: BaseException) -> None:
        folder.mkdir()
        with written("the model", folder):
            (folder / "part").touch()
            raise error

    for error, kind in ((KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space"), InfrastructureError)):
        with pytest.raises(kind):
            write(error)
        assert not folder.exists()
