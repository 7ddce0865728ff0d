"""What the suite must not inherit from whoever starts it: variables, ignored signals, the umask."""

from __future__ import annotations

import os
import signal

__all__ = ["HANDLED", "VARIABLES", "default_signals", "forget_the_caller"]

VARIABLES = frozenset(
    {
        "PYTEST_ADDOPTS",  # for this session only: projects of `gspo init` are tested by a session of their own
        "PYTHONWARNINGS",
        *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
        *(
            "http_proxy",
            "HTTP_PROXY",
            "https_proxy",
            "HTTPS_PROXY",
            "all_proxy",
            "ALL_PROXY",
        ),  # servers are on loopback
    }
)
HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that a run answers, and that nohup (SIGHUP) or a shell's ``&`` (SIGINT) may have set to be ignored."""


def forget_the_caller() -> None:
    """Drop the caller's variables and umask, and let Ctrl-C interrupt; for child processes, too.

    SIGHUP is left alone here, so that ``nohup make test`` outlives its terminal: see :func:`default_signals`.
    """
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def default_signals() -> None:
    """Answer signals as a command does that somebody has started at a terminal."""
    for number in HANDLED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
