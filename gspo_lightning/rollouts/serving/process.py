"""Server process on this machine that ends with the trainer, however the trainer ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gspo_lightning.rollouts.serving import watchdog

TAIL = 1500
"""Characters of a server's log shown when it ends by itself."""


class LocalServer:
    """One server process and its children, under a watchdog that ends them when this process is gone.

    Args:
        line: the command; anybody on the machine can read it.
        environment: variables in addition to this process's; only this user can read them.
        remove: folders that the guard removes if this process is gone without having ended the server.
    """

    def __init__(self, line: list[str], environment: Mapping[str, str], remove: Sequence[Path] = ()) -> None:
        descriptor, name = tempfile.mkstemp(prefix="gspo-server-", suffix=".log")
        os.close(descriptor)
        self.log = Path(name)
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", watchdog.__file__, *map(str, remove), watchdog.END, *line],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C goes to the trainer, which ends the server afterwards
            )

    @property
    def running(self) -> bool:
        """True if the server has not ended yet."""
        return self.process.poll() is None

    def tail(self) -> str:
        """Return the end of the server's log."""
        text = self.log.read_text(errors="replace")
        return text[-TAIL:].strip() or "(nothing)"

    def close(self) -> None:
        """End the server and all its children, and wait until they are gone."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(4 * watchdog.GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def discard(self) -> None:
        """End the server and delete its log, which is not needed after a normal end."""
        self.close()
        self.log.unlink(missing_ok=True)
