"""stdout and stderr that may lose their reader: ``| head -1``, a closed terminal, a lost connection.

Nothing here imports torch: reward workers print, too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, TextIO

_GONE = {errno.EPIPE, errno.EIO, errno.ECONNRESET, errno.ENXIO}
"""Errors of a write without a reader; a closed terminal gives EIO."""


class _Main(Protocol):
    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


class _ReaderGone(SystemExit):
    """Exit without a reader of the output; the exit code is that of programs ended by SIGPIPE."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGPIPE)


class _Forgiving(io.FileIO):
    """File descriptor that is redirected to nowhere once its reader is gone.

    Args:
        descriptor: stays open.
        ends: raise :class:`_ReaderGone` then.
    """

    def __init__(self, descriptor: int, *, ends: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._ends = ends

    def write(self, data: Any) -> int:
        """Write, or discard the data if the reader is gone."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            _lead_nowhere(self.fileno())
            if self._ends:
                raise _ReaderGone from None
            return memoryview(data).nbytes


def forgiving(stream: TextIO | None, *, ends: bool = False) -> TextIO | None:
    """Return the stream with writes that do not fail when its reader is gone.

    Args:
        stream: a stream that is no file (in tests, in notebooks) is returned unchanged.
        ends: raise ``SystemExit`` at the first write that nobody reads.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        raw = _Forgiving(stream.fileno(), ends=ends)
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return stream
    _flush(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, newline="\n",
        line_buffering=stream.line_buffering, write_through=stream.write_through,
    )  # fmt: skip


def outlives_its_reader(commands: Collection[str]) -> Callable[[_Main], _Main]:
    """Decorate ``main``: these commands continue without a reader, to the same exit code.

    Other commands end when stdout has no reader. No command ends because nobody reads its stderr.
    """

    def decorate(main: _Main) -> _Main:
        @functools.wraps(main)
        def patient(argv: Sequence[str] | None = None) -> int:
            arguments = sys.argv[1:] if argv is None else argv
            with _forgiving_streams(ends=not (arguments and arguments[0] in commands)):
                return main(argv)

        @functools.wraps(main)
        def quiet(argv: Sequence[str] | None = None) -> int:
            try:
                return patient(argv)
            except _ReaderGone as gone:
                return int(gone.code or 0)

        return quiet

    return decorate


@contextlib.contextmanager
def _forgiving_streams(*, ends: bool) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    streams = forgiving(sys.stdout, ends=ends), forgiving(sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        now = sys.stdout, sys.stderr  # what ran inside may have put others in their place
        sys.stdout, sys.stderr = before
        for stream in (*now, *before):
            _flush(stream)


def _flush(stream: TextIO | None) -> None:
    """Flush the rest, or discard it: Python would complain at the end of the process."""
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except _ReaderGone:
        return
    except OSError as error:
        if error.errno not in _GONE:
            raise
        _lead_nowhere(stream.fileno())


def _lead_nowhere(descriptor: int) -> None:
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)
