"""Frames between the process of a test and the process of a program: a length of four bytes, then the content."""

from __future__ import annotations

import os

CHANNEL = 5
"""File descriptor of the channel in both processes, as in ``program.py``."""
_LARGEST = 1 << 26


def receive() -> bytes | None:
    """Return the next frame, or None at the end.

    Raises:
        ValueError: the frame is larger than 64 MiB.
    """
    header = _read(4)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    if length > _LARGEST:
        raise ValueError(f"a frame of {length} bytes")
    return _read(length)


def send(body: bytes) -> None:
    """Write a frame."""
    view = memoryview(len(body).to_bytes(4, "big") + body)
    while view:
        view = view[os.write(CHANNEL, view) :]


def _read(count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(CHANNEL, min(count - len(pieces), 1 << 20))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)
