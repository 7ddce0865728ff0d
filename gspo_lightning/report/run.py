"""A run as a report knows it: curves, summary, config and alarms, and what can be said from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.report.held_out import ACCURACY, REWARD, Shown, shown_by

__all__ = ["Run", "Series", "labels", "number"]


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
        sections = {k: {**v} if isinstance(v, dict) else v for k, v in self.config.items() if k != "seed_everything"}
        for section, name in (
            ("trainer", "default_root_dir"),
            ("trainer", "logger"),
            ("model", "seed"),
            ("data", "seed"),
        ):
            if isinstance(inside := sections.get(section), dict):
                inside.pop(name, None)
        return json.dumps(sections, sort_keys=True, default=str)

    @property
    def model(self) -> str:
        """The last part of its name or path."""
        written = self.summary.get("model") or self.setting("model", "name_or_path")
        return Path(str(written)).name if written else "unknown model"

    @property
    def date(self) -> str:
        """The day of the first event, or of the folder's last change."""
        seconds = self.started if self.started is not None else self.folder.stat().st_mtime
        try:
            return f"{datetime.fromtimestamp(seconds):%Y-%m-%d}"
        except (ValueError, OverflowError, OSError):  # of a clock that was wrong
            return "unknown day"

    @property
    def updates(self) -> int:
        """Optimizer updates that were logged (or, without any, that the summary counts)."""
        steps = [
            int(s.steps[-1])
            for tag, s in self.scalars.items()
            if not tag.startswith(("val/", "cold_start/")) and len(s)
        ]
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
    def of_reward_model(self) -> bool:
        """Whether ``gspo fit-reward`` made it: there is no policy in it."""
        written = self.config.get("model")
        return any(tag.startswith("reward_model/") for tag in self.scalars) or (
            isinstance(written, dict) and "center_rewards_coefficient" in written
        )

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

    @property
    def shown_by(self) -> Shown:
        """Whether evaluations are shown by their accuracy or by their mean reward."""
        lowest, highest = self.get("val/lowest_score"), self.get("val/highest_score")
        scores = {tag: s.values for tag, s in (("lowest", lowest), ("highest", highest)) if s is not None}
        extremes = {
            f"val/{tag}_score": (values.min() if tag == "lowest" else values.max()) for tag, values in scores.items()
        }
        return shown_by([extremes], named=self.setting("data", "evaluation", "accuracy_reward") is not None)

    @property
    def held_out_tag(self) -> str:
        """The scalar that evaluations are shown by."""
        return ACCURACY if self.shown_by == "accuracy" else REWARD

    def held_out(self) -> tuple[float | None, float | None]:
        """Before and after, of what evaluations are shown by: the first and last one, by the summary where there is
        one; one is not both."""
        series = self.get(self.held_out_tag)
        first = None if series is None else float(series.values[0])
        last = None if series is None or len(series) < 2 else float(series.values[-1])
        name = "accuracy" if self.shown_by == "accuracy" else "reward"
        before, after = (number(self.summary.get(f"{name}_{when}")) for when in ("before", "after"))
        return first if before is None else before, last if after is None else after

    def accuracy(self) -> tuple[float | None, float | None]:
        """:meth:`held_out` where it is the accuracy; nothing where the reward is none."""
        return self.held_out() if self.shown_by == "accuracy" else (None, None)


def number(value: Any) -> float | None:
    """A finite number as a float, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


def labels(runs: Sequence[Run]) -> list[str]:
    """The shortest description that tells the runs apart: objective, with seed, with model, or the folder."""
    for parts in (("objective",), ("objective", "seed"), ("objective", "model"), ("objective", "model", "seed")):
        found = [", ".join(f"seed {r.seed}" if p == "seed" else getattr(r, p) for p in parts) for r in runs]
        if len(set(found)) == len(runs):
            return found
    paths = [r.folder.resolve() for r in runs]
    common = Path(os.path.commonpath(paths))
    return [f"{r.objective}, {p.relative_to(common)}" for r, p in zip(runs, paths, strict=True)]
