"""Reads a run folder back: scalars, summary and config, whatever a killed run has left of them."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gspo_lightning.errors import UserError

__all__ = ["Run", "Series", "labels", "read_run"]

EVENTS, SUMMARY, CONFIG, ALARMS = "events.out.tfevents.", "summary.json", "config.yaml", "alarms.json"
SEARCH_DEPTH, SEARCH_FOLDERS = 4, 2000
"""How far below a wrong folder run folders are looked for, in levels and in folders."""


@dataclass(frozen=True, slots=True)
class Series:
    """One scalar over updates: ``steps`` [K] ascending without repeats, ``values`` [K], which may be not finite."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def finite(self) -> Series:
        """Only what is finite."""
        keep = np.isfinite(self.values)
        return Series(self.steps[keep], self.values[keep])

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class Run:
    """What is known about a run. ``problems`` says in words what is not, ``label`` tells it from the others.

    ``finished`` says whether it came to its end and wrote its summary.
    """

    folder: Path
    scalars: dict[str, Series] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """Signatures of collapse that were recognised: ``signature``, ``since``, ``update``, ``what``, ``action`` ..."""
    started: float | None = None
    last_event: float | None = None
    problems: list[str] = field(default_factory=list)
    label: str = ""
    finished: bool = False

    def get(self, tag: str) -> Series | None:
        """The finite part of a scalar, or None where nothing of it was logged."""
        series = self.scalars.get(tag)
        return finite if series is not None and len(finite := series.finite) else None

    @property
    def objective(self) -> str:
        """Its class name, or ``unknown objective``."""
        written = self.summary.get("objective") or self.setting("model", "objective", "class_path")
        return str(written).rsplit(".", 1)[-1] if written else "unknown objective"

    @property
    def seed(self) -> str:
        """As written, or ``?``."""
        found = self.summary.get("seed", self.config.get("seed_everything"))
        return "?" if found is None else str(found)

    @property
    def kind(self) -> str:
        """The same for runs whose configs differ only in their seed and in where they write; empty without a config."""
        if not self.config:
            return ""
        rooms = {k: {**v} if isinstance(v, dict) else v for k, v in self.config.items() if k != "seed_everything"}
        for room, name in (("trainer", "default_root_dir"), ("trainer", "logger"), ("model", "seed"), ("data", "seed")):
            if isinstance(inside := rooms.get(room), dict):
                inside.pop(name, None)
        return json.dumps(rooms, sort_keys=True, default=str)

    @property
    def model(self) -> str:
        """The last part of its name or path."""
        written = self.summary.get("model") or self.setting("model", "name_or_path")
        return Path(str(written)).name if written else "unknown model"

    @property
    def date(self) -> str:
        """The day of the first event, or of the folder's last change."""
        seconds = self.started if self.started is not None else self.folder.stat().st_mtime
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d}"

    @property
    def updates(self) -> int:
        """Optimizer updates that were logged (or, without any, that the summary counts)."""
        steps = [int(s.steps[-1]) for tag, s in self.scalars.items() if not tag.startswith("val/") and len(s)]
        return max(steps) if steps else int(number(self.summary.get("updates")) or 0)

    @property
    def iterations(self) -> int | None:
        """Rollout batches, or None where it was not logged."""
        if (counted := number(self.summary.get("iterations"))) is not None:
            return int(counted)
        series = self.get("data/iteration")
        return None if series is None else int(series.values[-1]) + 1

    @property
    def seconds(self) -> float | None:
        """Of the run by its summary, else between its first and last event."""
        if (measured := number(self.summary.get("seconds"))) is not None:
            return measured
        return None if self.started is None or self.last_event is None else self.last_event - self.started

    @property
    def sequence_level(self) -> bool:
        """Whether the objective clips whole sequences."""
        return "clip/sequences" in self.scalars

    def setting(self, *path: str) -> Any:
        """A value of the config, or None."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def first_and_last(self, tag: str) -> tuple[float, float] | None:
        """The mean over the first and over the last iteration (or update, where iterations were not logged).

        NaN where a value in it is not finite.
        """
        series = self.scalars.get(tag)
        if series is None:
            return None
        iteration = self.get("data/iteration")
        if iteration is None or tag.startswith("val/"):
            return float(series.values[0]), float(series.values[-1])
        number_of = dict(zip(iteration.steps.tolist(), iteration.values.tolist(), strict=True))
        where = np.array([number_of.get(step, np.nan) for step in series.steps.tolist()])
        if not np.isfinite(where).any():
            return float(series.values[0]), float(series.values[-1])
        first, last = np.nanmin(where), np.nanmax(where)
        return float(series.values[where == first].mean()), float(series.values[where == last].mean())

    def accuracy(self) -> tuple[float | None, float | None]:
        """Before and after: the first and last evaluation, by the summary where there is one; one is not both."""
        series = self.get("val/accuracy")
        first = None if series is None else float(series.values[0])
        last = None if series is None or len(series) < 2 else float(series.values[-1])
        before, after = (number(self.summary.get(f"accuracy_{when}")) for when in ("before", "after"))
        return first if before is None else before, last if after is None else after


def number(value: Any) -> float | None:
    """A finite number as a float, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


def read_run(folder: Path) -> Run:
    """Everything that can be read of a run.

    Raises:
        UserError: the folder is not there, or has neither event files nor a summary; run folders below are named.
    """
    _check(folder)
    run = Run(folder)
    _read_events(run)
    _read_json(run)
    _read_config(run)
    _read_alarms(run)
    if run.updates > (number(run.summary.get("updates")) or math.inf):
        run.problems.append(
            f"{SUMMARY} was written at update {run.summary['updates']:.0f}, before the run went on; "
            "numbers are from its events"
        )
        run.summary = {key: run.summary[key] for key in ("objective", "model", "seed") if key in run.summary}
        run.finished = False
    return run


def labels(runs: Sequence[Run]) -> list[str]:
    """The shortest description that tells the runs apart: objective, with seed, with model, or the folder."""
    for parts in (("objective",), ("objective", "seed"), ("objective", "model"), ("objective", "model", "seed")):
        found = [", ".join(f"seed {r.seed}" if p == "seed" else getattr(r, p) for p in parts) for r in runs]
        if len(set(found)) == len(runs):
            return found
    paths = [r.folder.resolve() for r in runs]
    common = Path(os.path.commonpath(paths))
    return [f"{r.objective}, {p.relative_to(common)}" for r, p in zip(runs, paths, strict=True)]


def _check(folder: Path) -> None:
    if folder.is_file():
        raise UserError("gspo report", f"{folder} is a file", fix=f"give its run folder: {folder.parent}")
    if folder.is_dir() and (any(folder.glob(f"{EVENTS}*")) or (folder / SUMMARY).is_file()):
        return
    if folder.is_dir():
        problem = f"{folder} is not a run folder: it has no {EVENTS}* file and no {SUMMARY}"
        near = list(_runs_below(folder))
    else:
        problem = f"{folder} does not exist"
        near = list(_runs_below(next(p for p in folder.absolute().parents if p.is_dir())))
    near.sort(key=lambda p: (len(p.parts), -p.stat().st_mtime))
    where = "below it" if folder.is_dir() else "nearby"
    fix = f"run folders {where}: " + ", ".join(map(str, near[:5])) if near else None
    raise UserError("gspo report", problem, fix=fix or f"there is none {where}; gspo fit makes run folders under runs/")


def _runs_below(top: Path) -> Iterator[Path]:
    for count, (name, folders, files) in enumerate(os.walk(top)):
        here = Path(name)
        if count >= SEARCH_FOLDERS:
            return
        deep = len(here.relative_to(top).parts) >= SEARCH_DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        if any(f.startswith(EVENTS) for f in files):
            yield here


def _read_events(run: Run) -> None:
    accumulator = EventAccumulator(str(run.folder), size_guidance={"scalars": 0, "histograms": 1, "tensors": 1})
    with _without_warnings():
        try:
            accumulator.Reload()
        except Exception as error:  # a damaged file: what was read before the damage is there
            run.problems.append(f"the event files could not be read to their end ({type(error).__name__}: {error})")
    times: list[float] = []
    for tag in accumulator.Tags()["scalars"]:
        events = accumulator.Scalars(tag)
        latest = {event.step: event.value for event in events}  # a resumed run may have logged a step twice
        steps = sorted(latest)
        run.scalars[tag] = Series(np.array(steps, dtype=np.int64), np.array([latest[s] for s in steps], dtype=float))
        times += [events[0].wall_time, events[-1].wall_time]
    if times:
        run.started, run.last_event = min(times), max(times)
    else:
        run.problems.append("no scalars in the event files: the run stopped before its first update was written")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Resumed runs overlap by design; the reader warns about every one of them."""
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
        content = json.loads(path.read_text(encoding="utf-8"))
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
        return  # no alarm, or a run from before there were any
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        run.alarms = [{**alarm, "since": int(alarm["since"]), "update": int(alarm["update"])} for alarm in content]
    except (ValueError, TypeError, KeyError) as error:
        run.problems.append(f"{ALARMS} is damaged ({error})")


def _read_config(run: Run) -> None:
    path = run.folder / CONFIG
    if not path.is_file():
        run.problems.append(f"no {CONFIG}")
        return
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        run.problems.append(f"{CONFIG} is damaged ({str(error).splitlines()[0]})")
        return
    run.config = content if isinstance(content, dict) else {}
