"""Find damage in event files, which TensorBoard's reader does not report: it stops there."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

__all__ = ["NO_EVENTS", "last_scalar", "problem_of", "records"]

NO_EVENTS = "is not an event file of TensorBoard"
_LENGTH, _CRC = 8, 4


def records(file: Path) -> tuple[list[tuple[int, int]], int]:
    """Return (start, bytes) of the whole records, found by their lengths alone, and the end of the last one."""
    found, at, size = [], 0, file.stat().st_size
    with open(file, "rb") as stream:
        while at + _LENGTH + _CRC <= size:
            stream.seek(at)
            length = int(struct.unpack("<Q", stream.read(_LENGTH))[0])
            start, end = at + _LENGTH + _CRC, at + _LENGTH + _CRC + length + _CRC
            if end > size:
                break
            found.append((start, length))
            at = end
    return found, at


def problem_of(file: Path) -> str | None:
    """Return a description of damage; None if the records are whole, as far as their lengths tell."""
    size = file.stat().st_size
    if size == 0:
        return f"{file.name} is empty"
    with open(file, "rb") as stream:
        head = stream.read(_LENGTH + _CRC)
    if len(head) == _LENGTH + _CRC and struct.unpack("<I", head[_LENGTH:])[0] != masked_crc32c(head[:_LENGTH]):
        return f"{file.name} {NO_EVENTS}"
    found, end = records(file)
    if found and not _event(file, *found[0]).file_version.startswith("brain.Event"):
        return f"{file.name} {NO_EVENTS}"
    if end < size:
        return (
            f"{file.name} ends within a record, or is damaged, after {end:,} of {size:,} bytes: what stood behind "
            f"that is missing in it (the run was killed, the file was cut, or it is being written now)"
        )
    return None


def last_scalar(file: Path) -> tuple[str, int] | None:
    """Return tag and step of the last scalar in the file."""
    for place in reversed(records(file)[0]):
        event = _event(file, *place)
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                return value.tag, event.step
    return None


def _event(file: Path, start: int, length: int) -> Event:
    """Return a record; an empty one if it cannot be read."""
    with open(file, "rb") as stream:
        stream.seek(start)
        try:
            return Event.FromString(stream.read(length))
        except Exception:  # protobuf's own class; only tensorboard depends on that package
            return Event()
