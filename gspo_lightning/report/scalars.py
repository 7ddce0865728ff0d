"""Logged numbers of a run, in memory and in a compact file of its folder: ``scalars.jsonl``.

The event files are for TensorBoard; code that reads a run back reads this file. A line such as ``{"table": 0, "tags":
["loss", "reward/mean"]}`` names the columns of a table. A line such as ``[0, 12, 1764072001.25, 0.0312, 0.75]`` is a
row: number of the table, step, time (Unix, seconds) and values.
"""

from __future__ import annotations

import json
import logging
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.report.run import Series

log = logging.getLogger(__name__)
SCALARS = "scalars.jsonl"


@dataclass(slots=True)
class _Table:
    """Rows with the same tags: ``steps`` [K], ``times`` [K] in seconds, ``values`` [K * tags] in float32."""

    number: int
    tags: tuple[str, ...]
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("f"))

    def add(self, step: int, seconds: float, values: Iterable[float]) -> None:
        self.steps.append(step)
        self.times.append(seconds)
        self.values.extend(values)


class Scalars:
    """Numbers of a run, 4 bytes each in memory, about 10 in the file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder.absolute() / SCALARS
        self.damaged = 0
        """Number of lines that could not be read: a killed run may leave one."""
        self._tables: dict[tuple[str, ...], _Table] = {}

    @classmethod
    def read(cls, folder: Path) -> Scalars:
        """Read the file of a run; empty if there is none."""
        scalars = cls(folder)
        tables: dict[int, _Table] = {}
        for content in _contents(scalars.file) if scalars.file.is_file() else ():
            try:
                if isinstance(content, dict):
                    tables[content["table"]] = scalars._table(tuple(content["tags"]))
                    continue
                number, step, seconds, *values = content
                row = array("f", values)
                if len(row) != len(tables[number].tags):
                    raise ValueError("a row is cut off")
                tables[number].add(int(step), float(seconds), row)
            except (ValueError, TypeError, KeyError, OverflowError):
                scalars.damaged += 1
        return scalars

    def __len__(self) -> int:
        return sum(len(table.steps) for table in self._tables.values())

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of a step, in memory and at the end of the file.

        Raises:
            FileNotFoundError: the folder is gone.
            InfrastructureError: the file cannot be written.
        """
        tags = tuple(values)
        new = tags not in self._tables
        table = self._table(tags)
        table.add(step, time.time(), values.values())
        text = (_head(table) if new else "") + _row(table, len(table.steps) - 1)
        try:
            if new and len(self._tables) == 1:  # a folder that vanishes later was deleted: do not make it again
                self.file.parent.mkdir(parents=True, exist_ok=True)
            elif not self.file.exists():
                self._write()
                log.warning("%s was removed during the run, and is written anew from memory", self.file)
                return
            with open(self.file, "a", encoding="ascii") as file:
                file.write(text)
        except FileNotFoundError:
            raise  # its path shows that the folder is gone
        except OSError as error:
            raise _unwritable(self.file, error) from error

    def cut(self, first: int) -> None:
        """Drop entries from this step on, which a resumed run logs again; rewrite the file atomically.

        Raises:
            InfrastructureError: the file cannot be written.
        """
        before = self._tables
        self._tables = {}
        self.damaged = 0
        for tags, old in before.items():
            kept = self._table(tags)
            width = len(tags)
            for i, step in enumerate(old.steps):
                if step < first:
                    kept.add(step, old.times[i], old.values[i * width : (i + 1) * width])
        try:
            self._write()
        except OSError as error:
            raise _unwritable(self.file, error) from error

    def _write(self) -> None:
        """Write the whole file anew, atomically."""
        from gspo_lightning.resume.files import write_text  # imports torch, which readers do not need

        lines = []
        for table in self._tables.values():
            lines += [_head(table), *(_row(table, i) for i in range(len(table.steps)))]
        write_text(self.file, "".join(lines))

    def missing(self, first: int) -> int:
        """Return the number of steps before this one that a file of a run lacks, judged as in :func:`missing_steps`.

        >>> lost = Scalars(Path("."))
        >>> lost.take({"loss": Series(np.array([1, 2, 3, 6]), np.zeros(4))}, 0.0)
        >>> lost.missing(9)  # 4, 5, 7, 8
        4
        """
        return missing_steps(self._steps(), first)

    def take(self, logged: Mapping[str, Series], seconds: float) -> None:
        """Add, in memory, values of steps that the file lacks; ``seconds`` is the time they were logged."""
        rows: dict[int, dict[str, float]] = {}
        present = self._steps()
        for tag, series in logged.items():
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                if step not in present:
                    rows.setdefault(step, {})[tag] = value
        for step, row in sorted(rows.items()):
            self._table(tuple(row)).add(step, seconds, row.values())

    def series(self) -> dict[str, Series]:
        """Return tag -> values over the steps; the later value of a step that was logged twice."""
        parts_of: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for table in self._tables.values():
            steps = np.array(table.steps, dtype=np.int64)
            values = np.array(table.values, dtype=np.float64).reshape(len(steps), len(table.tags))
            for column, tag in enumerate(table.tags):
                parts_of.setdefault(tag, []).append((steps, values[:, column]))
        merged = {}
        for tag, parts in parts_of.items():
            steps = np.concatenate([part for part, _ in parts])
            values = np.concatenate([part for _, part in parts])
            ordered, last = np.unique(steps[::-1], return_index=True)  # the first in reverse: the later of two
            if len(ordered):
                merged[tag] = Series(ordered, values[::-1][last])
        return merged

    def times(self) -> tuple[float, float] | None:
        """Return the times of the first and the last entry (Unix, seconds); None without entries."""
        times = [seconds for table in self._tables.values() for seconds in table.times]
        return (min(times), max(times)) if times else None

    def _steps(self) -> set[int]:
        return {step for table in self._tables.values() for step in table.steps}

    def _table(self, tags: tuple[str, ...]) -> _Table:
        return self._tables.setdefault(tags, _Table(len(self._tables), tags))


def missing_steps(logged: Iterable[int], first: int) -> int:
    """Return the number of steps before ``first`` that were not logged, judged by the most frequent distance.

    It is 1 if the first two are neighbours: of a long run whose events are thinned out most are not.

    >>> missing_steps([1, 2, 3, 6], 9), missing_steps([50, 100, 150, 250], 300), missing_steps([1, 2, 12, 22, 32], 33)
    (4, 1, 27)
    """
    present = {step for step in logged if 0 < step < first}
    steps = np.array([0, *sorted(present), first], dtype=np.int64)
    distances = np.diff(steps[1:-1])
    usual = int(np.bincount(distances).argmax()) if len(present) > 1 and distances[0] != 1 else 1
    return int(((np.diff(steps) - 1) // max(usual, 1)).sum())


def _contents(file: Path) -> Iterator[Any]:
    """Yield the content of each line, None if it is damaged; many lines are parsed at once, which is faster."""
    lines = file.read_bytes().splitlines()
    for start in range(0, len(lines), 64):
        some = lines[start : start + 64]
        try:
            contents = load_json(b"[" + b",".join(some) + b"]")
        except ValueError:
            contents = []
        yield from contents if len(contents) == len(some) else map(_content, some)


def _content(line: bytes) -> Any:
    try:
        return load_json(line)
    except ValueError:
        return None


def _head(table: _Table) -> str:
    return json.dumps({"table": table.number, "tags": table.tags}) + "\n"


def _row(table: _Table, place: int) -> str:
    width = len(table.tags)
    values = table.values[place * width : (place + 1) * width]
    # nine digits distinguish any two float32 numbers
    where = [table.number, table.steps[place], round(table.times[place], 2)]
    return json.dumps([*where, *(float(f"{value:.9g}") for value in values)], separators=(",", ":")) + "\n"


def _unwritable(file: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{file} cannot be written: {error.strerror or error}.\n"
        "  fix: make room (or the folder writable), then resume with --ckpt_path last"
    )
