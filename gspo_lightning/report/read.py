"""Read a run from its folder, also if it was killed: scalars, summary, config, alarms, damage of event files."""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json, load_yaml, whole_number
from gspo_lightning.report.answers import SCORES, read_answers
from gspo_lightning.report.run import Run, Series, number
from gspo_lightning.report.scalars import SCALARS, Scalars, missing_steps

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

EVENTS, SUMMARY, CONFIG, ALARMS = "events.out.tfevents.", "summary.json", "config.yaml", "alarms.json"
NONE = Series(np.array([], dtype=np.int64), np.array([]))
SEARCH_DEPTH, SEARCH_FOLDERS = 4, 2000
"""Limits of the search for run folders below a wrong folder, in levels and in folders."""
NO_EVENTS = "is not an event file of TensorBoard"
_LENGTH, _CRC = 8, 4


def read_run(folder: Path, scalars: Scalars | None = None, command: str = "gspo report") -> Run:
    """Read all that is left of a run.

    Args:
        folder: the run folder.
        scalars: its numbers, if they are in memory; else they are read from their file, or from event files.
        command: that errors name.

    Raises:
        UserError: the folder does not exist, or has neither event files nor a summary; run folders below are named.
    """
    _check(folder, command)
    run = Run(folder)
    kept = scalars if scalars is not None else Scalars.read(folder)
    if kept.damaged:
        run.problems.append(f"{kept.damaged} damaged lines of {kept.file.name} were left out")
    if times := kept.times():
        run.scalars, (run.started, run.last_event) = kept.series(), times
        if scalars is None:  # the event files may hold less
            files = event_files(folder)
            run.problems += [problem for file in files if (problem := problem_of(file)) is not None]
    else:
        read_events(run, command)
        _say_what_is_thinned_out(run)
    _read_config(run)
    if not run.of_reward_model:  # a reward model has results.json instead
        _read_json(run)
    _read_alarms(run)
    run.scores = read_answers(folder, SCORES)
    if run.updates > (number(run.summary.get("updates")) or math.inf):
        run.problems.append(
            f"{SUMMARY} was written at update {run.summary['updates']:.0f}, before the run went on; "
            "numbers are from its events"
        )
        run.summary = {key: run.summary[key] for key in ("objective", "model", "seed") if key in run.summary}
        run.finished = False
    return run


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a run; a pipe of that name would never end."""
    return sorted(file for file in folder.glob(f"{EVENTS}*") if file.is_file())


def _check(folder: Path, command: str) -> None:
    if folder.is_file():
        raise UserError(command, f"{folder} is a file", fix=f"give its run folder: {folder.parent}")
    if is_run_folder(folder):
        return
    if folder.is_dir():
        problem = f"{folder} is not a run folder: it has no {EVENTS}* file and no {SUMMARY}"
        near = list(runs_below(folder))
    else:
        problem = f"{folder} does not exist"
        near = list(runs_below(next(p for p in folder.absolute().parents if p.is_dir())))
    near.sort(key=lambda p: (len(p.parts), -p.stat().st_mtime))
    where = "below it" if folder.is_dir() else "nearby"
    fix = f"run folders {where}: " + ", ".join(map(str, near[:5])) if near else None
    raise UserError(command, problem, fix=fix or f"there is none {where}; gspo fit makes run folders under runs/")


def is_run_folder(folder: Path) -> bool:
    """True if a folder has numbers of a run: event files, scalars or a summary."""
    return folder.is_dir() and (
        bool(event_files(folder)) or any((folder / name).is_file() for name in (SUMMARY, SCALARS))
    )


def runs_below(top: Path) -> Iterator[Path]:
    """Yield the run folders in a folder, itself included, down to a depth and a number of folders."""
    for count, (name, folders, files) in enumerate(os.walk(top)):
        here = Path(name)
        if count >= SEARCH_FOLDERS:
            return
        deep = len(here.relative_to(top).parts) >= SEARCH_DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        if any(f.startswith((EVENTS, SUMMARY, SCALARS)) for f in files) and is_run_folder(here):
            yield here


def read_events(run: Run, command: str) -> None:
    """Fill in the scalars of event files, and the times of the first and the last event; errors name the command."""
    # a third of a second, which runs with scalars.jsonl and no event file do not need
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = event_files(run.folder)
    last = last_scalar(files[-1]) if files else None  # before it grows
    others = [file.name for file in run.folder.glob(f"{EVENTS}*") if file not in files]
    if others:  # TensorBoard's reader would wait for a pipe for ever
        run.problems.append(f"event files are not read beside {others[0]}, which is no file")
    if others or not files:
        _say_what_is_damaged(run, files, last, command)
        return
    accumulator = EventAccumulator(str(run.folder), size_guidance={"scalars": 0, "histograms": 1, "tensors": 1})
    with _without_warnings():
        try:
            accumulator.Reload()
        except Exception as error:  # a damaged file: everything before the damage was read
            run.problems.append(f"the event files could not be read to their end ({type(error).__name__}: {error})")
    times: list[float] = []
    for tag in accumulator.Tags()["scalars"]:
        if not (events := accumulator.Scalars(tag)):  # a resume has purged all of them
            continue
        latest = {event.step: event.value for event in events}  # a resumed run may have logged a step twice
        steps = sorted(latest)
        run.scalars[tag] = Series(np.array(steps, dtype=np.int64), np.array([latest[s] for s in steps], dtype=float))
        times += [events[0].wall_time, events[-1].wall_time]
    if times:
        run.started, run.last_event = min(times), max(times)
    _say_what_is_damaged(run, files, last, command)


def _say_what_is_damaged(run: Run, files: Sequence[Path], last: tuple[str, int] | None, command: str) -> None:
    """Report damage: TensorBoard's reader takes it silently for the end of the file."""
    found = [problem for file in files if (problem := problem_of(file)) is not None]
    if not run.scalars and not (run.folder / SUMMARY).is_file() and any(NO_EVENTS in problem for problem in found):
        raise UserError(command, f"{run.folder}: {'; '.join(found)}", fix="give the folder of a run")
    run.problems += found
    if not found and last is not None and last[1] not in run.scalars.get(last[0], NONE).steps:
        run.problems.append(f"{files[-1].name} is damaged: its events up to update {last[1]} cannot all be read")
    if not run.scalars and not found:
        run.problems.append("no scalars in the event files: the run stopped before its first update was written")


def _say_what_is_thinned_out(run: Run) -> None:
    """Report updates that event files lack: medians, spikes and alarms of such a run are those of the others."""
    kept: set[int] = set()
    for tag, series in run.scalars.items():
        if not tag.startswith(("val/", "cold_start/")):
            kept.update(series.steps.tolist())
    if not kept:
        return
    before = min(kept) - 1  # a run that was resumed into a new folder begins late
    missing = missing_steps((step - before for step in kept), max(kept) - before)
    if missing:
        run.problems.append(
            f"the event files lack {missing:,} of the {max(kept) - before:,} updates up to {max(kept):,}, and "
            f"{SCALARS} has none: event files of a long run are thinned out, and what happened in between is not told"
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence TensorBoard: it warns about resumed runs, which overlap by design."""
    logger = logging.getLogger("tensorboard")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read_json(run: Run) -> None:
    path = run.folder / SUMMARY
    if not path.is_file():
        run.problems.append(f"no {SUMMARY}: the run has not finished, or it was stopped; numbers are from its events")
        return
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        run.problems.append(f"{SUMMARY} is damaged ({error}); numbers are from the events")
        return
    if isinstance(content, dict):
        run.summary, run.finished = content, True
    else:
        run.problems.append(f"{SUMMARY} holds a {type(content).__name__}, not a table of values")


def _read_alarms(run: Run) -> None:
    path = run.folder / ALARMS
    if not path.is_file():
        return  # no alarm
    try:
        content = load_json(path.read_text(encoding="utf-8"))
        numbered = [[whole_number(alarm[name], name) for name in ("since", "update")] for alarm in content]
    except (ValueError, TypeError, KeyError) as error:
        run.problems.append(f"{ALARMS} is damaged ({error})")
        return
    run.alarms = [{**a, "since": since, "update": at} for a, (since, at) in zip(content, numbered, strict=True)]


def _read_config(run: Run) -> None:
    path = run.folder / CONFIG
    if not path.is_file():
        run.problems.append(f"no {CONFIG}")
        return
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        run.problems.append(f"{CONFIG} is damaged ({str(error).splitlines()[0]})")
        return
    run.config = content if isinstance(content, dict) else {}


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
    if found and not event_at(file, *found[0]).file_version.startswith("brain.Event"):
        return f"{file.name} {NO_EVENTS}"
    if end < size:
        return (
            f"{file.name} ends within a record, or is damaged, after {end:,} of {size:,} bytes: what stood behind "
            f"that is missing in it (the run was killed, the file was cut, or it is being written now)"
        )
    return None


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of TFRecord files: importing TensorBoard's own takes 0.4 s.

    >>> hex(masked_crc32c(b"123456789"))  # CRC-32C is e3069283
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def last_scalar(file: Path) -> tuple[str, int] | None:
    """Return tag and step of the last scalar in the file."""
    for place in reversed(records(file)[0]):
        event = event_at(file, *place)
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                return value.tag, event.step
    return None


def event_at(file: Path, start: int, length: int) -> Event:
    """Return a record of an event file (:func:`records`); an empty one if it cannot be read."""
    from tensorboard.compat.proto.event_pb2 import Event

    with open(file, "rb") as stream:
        stream.seek(start)
        try:
            return Event.FromString(stream.read(length))
        except Exception:  # protobuf's own class; only tensorboard depends on that package
            return Event()
