"""The suite does not depend on who starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.runs.processes import SERVER, Command
from tests.support.caller import HANDLED, VARIABLES

SHOW = """
import os, signal
import tests.conftest
print(sorted(set(os.environ) & {variables}), oct(os.umask(0)), signal.getsignal(signal.SIGINT).__name__)
"""


def hostile() -> None:
    os.umask(0o077)
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def test_tests_see_nothing_of_their_caller() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.replace("{variables}", str(set(VARIABLES)))],
        env={**os.environ, **dict.fromkeys(VARIABLES - {"PYTHONWARNINGS"}, "1"), "PYTHONWARNINGS": "error"},
        cwd=ROOT,
        preexec_fn=hostile,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[] 0o22 default_int_handler\n", done.stderr


def show(log: Path) -> None:
    log.write_text(str([signal.getsignal(number) != signal.SIG_IGN for number in HANDLED]))


def test_a_command_of_a_test_answers_signals_that_its_caller_ignores(tmp_path: Path) -> None:
    """The server that commands are forked from may have been started under nohup."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in HANDLED}
    try:
        code = "import sys; from tests.support.test_caller import through; through(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], cwd=ROOT, check=True, timeout=120)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "log").read_text() == "[True, True, True]"


def through(log: str) -> None:
    """Start a command from a process that ignores all signals, with a server of its own."""
    import functools

    SERVER.set_forkserver_preload(["tests.runs.processes"])  # the rest takes seconds, and has no part in this
    Command(["--help"], prepare=functools.partial(show, Path(log))).start().wait()
