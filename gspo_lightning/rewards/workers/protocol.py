"""Pipe protocol between the runner and its workers: frames of a length and a body.

Runner to worker: pickles, because the runner is trusted and rewards are objects. Worker to runner: JSON only, because
the worker handles text of the model.

======== ============================================================ ===============================================
worker   ``{"t": "ready", "cpu"}``                                    rewards are loaded and prepared
says     ``{"t": "score", "r", "s", "d", "cpu"}``                     verdict on the next sample of the task, in order;
                                                                      ``m`` and ``x`` are what a function has logged,
                                                                      ``p`` ends and scores of steps
         ``{"t": "done", "mb", "cpu"}``                               the task is finished; megabytes of address space
         ``{"t": "raised", "id", "error", "trace"}``                  the plug-in raised; the task is dropped
         ``{"t": "refused", "field", "problem", "fix"}``              a :class:`UserError`; the task is dropped
         ``{"t": "unavailable", "reason"}``                           an :class:`InfrastructureError`; the same
         ``{"t": "broken", "error", "trace"}``                        the worker cannot start
======== ============================================================ ===============================================

``cpu`` is seconds of CPU time of the worker process so far.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct(">Q")
LENGTH_BYTES = _LENGTH.size
MAX_JSON_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame sent to a worker.

    ``rewards`` is a pickle of ``{name: Reward}``. ``plugin_files`` maps the canonical names of plug-in modules to their
    files. ``memory_mb`` bounds the address space (MiB), ``deadline_s`` the CPU time of a sample (seconds). A worker
    ends when the process ``parent_pid`` does.
    """

    rewards: bytes
    sys_path: list[str]
    memory_mb: int
    deadline_s: float
    parent_pid: int
    plugin_files: Mapping[str, str] = field(default_factory=dict)


def frame(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return _LENGTH.pack(len(body)) + body


def json_frame(message: Mapping[str, Any]) -> bytes:
    """Return a message as an ASCII JSON frame; NaN and infinity are refused."""
    return frame(json.dumps(message, allow_nan=False).encode("ascii"))


def body_length(header: bytes) -> int:
    """Return the body length in bytes from a header."""
    return int(_LENGTH.unpack(header)[0])


class FrameReader:
    """A decoder that reassembles the frames of a stream from pieces of any size.

    >>> reader = FrameReader()
    >>> whole = json_frame({"t": "ready"})
    >>> reader.feed(whole[:3]), reader.feed(whole[3:])
    ([], [{'t': 'ready'}])
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the messages that this piece completes.

        Raises:
            ValueError: the data is not a frame of this protocol.
        """
        self._buffer += piece
        messages: list[dict[str, Any]] = []
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            length = body_length(bytes(self._buffer[start : start + LENGTH_BYTES]))
            if length > MAX_JSON_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = start + LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            message = json.loads(self._buffer[start + LENGTH_BYTES : end])
            if not isinstance(message, dict):
                raise ValueError("a frame that is no object")
            start = end
            messages.append(message)
        del self._buffer[:start]
        return messages
