"""Run: curves, summary, config and alarms of a run, and values derived from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.core.errors import is_finite
from gspo_lightning.core.metric_table.health import Clip
from gspo_lightning.core.tolerance import SINGLE, at_least, equal

Shown = Literal["accuracy", "mean reward"]
ACCURACY = "val/accuracy"
REWARD = "val/reward"
OF_NO_ITERATION = ("val/", "cold_start/")
"""Prefixes of what is logged between or before iterations; steps of a cold start count from 1 as updates do."""


def shown_by(evaluations: Iterable[Mapping[str, float]], *, named: bool) -> Shown:
    """Return ``accuracy`` if all scores of the accuracy reward were in [0, 1], or if a config names that reward.

    Args:
        evaluations: ``val/<name>`` -> value, one mapping per evaluation. Older runs have no lowest and highest score.
        named: True if ``data.evaluation.accuracy_reward`` names the reward that decides what is correct.

    >>> shown_by([{"val/accuracy": 0.0, "val/lowest_score": -2.0, "val/highest_score": 0.5}], named=False)
    'mean reward'
    >>> shown_by([{"val/lowest_score": 0.3 - 0.1 - 0.2, "val/highest_score": 1.0}], named=False)  # -2.8e-17
    'accuracy'
    """
    scores = [(values.get("val/lowest_score", 0.0), values.get("val/highest_score", 1.0)) for values in evaluations]
    fractions = all((low >= 0.0 or equal(low, 0.0, 1.0)) and at_least(-high, -1.0) for low, high in scores)
    return "accuracy" if named or fractions else "mean reward"


@dataclass(frozen=True, slots=True)
class Series:
    """A scalar over updates: ``steps`` [K] ascending without repeats, ``values`` [K], which may not be finite."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def finite(self) -> Series:
        """The finite values only."""
        keep = np.isfinite(self.values)
        return Series(self.steps[keep], self.values[keep])

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class Run:
    """All data of a run. ``problems`` describes missing data, ``label`` tells the run from others.

    ``finished`` is True if the run reached its end and wrote its summary.
    """

    folder: Path
    scalars: dict[str, Series] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """Collapse signatures that were recognised: ``signature``, ``since``, ``update``, ``what``, ``action`` ..."""
    scores: list[dict[str, Any]] = field(default_factory=list)
    """Scores of all held-out prompts, one row per evaluation (:data:`gspo_lightning.report.answers.SCORES`)."""
    started: float | None = None
    last_event: float | None = None
    problems: list[str] = field(default_factory=list)
    label: str = ""
    finished: bool = False

    def get(self, tag: str) -> Series | None:
        """Return the finite part of a scalar; None if nothing of it was logged."""
        series = self.scalars.get(tag)
        return finite if series is not None and len(finite := series.finite) else None

    @property
    def objective(self) -> str:
        """Class name of the objective, or ``unknown objective``."""
        written = self.summary.get("objective") or self.setting("model", "objective", "class_path")
        return str(written).rsplit(".", 1)[-1] if written else "unknown objective"

    @property
    def seed(self) -> str:
        """The seed as written, or ``?``."""
        written = self.summary.get("seed", self.config.get("seed_everything"))
        return "?" if written is None else str(written)

    @property
    def kind(self) -> str:
        """A key that is equal for runs whose configs differ only in seed and output paths; empty without a config."""
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
        """Last part of the model's name or path."""
        written = self.summary.get("model") or self.setting("model", "name_or_path")
        return Path(str(written)).name if written else "unknown model"

    @property
    def date(self) -> str:
        """The day of the first event, or of the folder's last change."""
        seconds = self.started if self.started is not None else self.folder.stat().st_mtime
        try:
            return f"{datetime.fromtimestamp(seconds):%Y-%m-%d}"
        except (ValueError, OverflowError, OSError):  # the clock was wrong
            return "unknown day"

    @property
    def updates(self) -> int:
        """Number of optimizer updates that were logged, or else that the summary counts."""
        steps = [int(s.steps[-1]) for tag, s in self.scalars.items() if not tag.startswith(OF_NO_ITERATION) and len(s)]
        return max(steps) if steps else int(number(self.summary.get("updates")) or 0)

    @property
    def iterations(self) -> int | None:
        """Number of rollout batches; None if it was not logged."""
        if (counted := number(self.summary.get("iterations"))) is not None:
            return int(counted)
        series = self.get("data/iteration")
        return None if series is None else int(series.values[-1]) + 1

    @property
    def seconds(self) -> float | None:
        """Duration of the run from its summary, else from its first to its last event."""
        if (measured := number(self.summary.get("seconds"))) is not None:
            return measured
        return None if self.started is None or self.last_event is None else self.last_event - self.started

    @property
    def of_reward_model(self) -> bool:
        """True if ``gspo fit-reward`` made the run: it has no policy."""
        written = self.config.get("model")
        return any(tag.startswith("reward_model/") for tag in self.scalars) or (
            isinstance(written, dict) and "center_rewards_coefficient" in written
        )

    @property
    def clip(self) -> Clip:
        """Clip range of the objective, by which bands of metrics are chosen and scaled."""
        sides = [number(self.setting("model", "objective", "init_args", side)) for side in ("clip_low", "clip_high")]
        return Clip(min((side for side in sides if side), default=None), self.sequence_level)

    @property
    def sequence_level(self) -> bool:
        """True if the objective clips whole sequences."""
        return "clip/sequences" in self.scalars

    def setting(self, *path: str) -> Any:
        """Return a value of the config, or None."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def ignored(self) -> frozenset[str]:
        """Collapse signatures that the run's config told the watch to ignore."""
        listed = self.setting("trainer", "callbacks")
        signatures = set[str]()
        for entry in listed if isinstance(listed, list) else [listed]:
            if isinstance(entry, Mapping) and str(entry.get("class_path", "")).rsplit(".", 1)[-1] == "Collapse":
                options = entry.get("init_args")
                names = options.get("ignore") if isinstance(options, Mapping) else None
                if isinstance(names, list):
                    signatures |= {name for name in names if isinstance(name, str)}
        return frozenset(signatures)

    def first_and_last(self, tag: str) -> tuple[float, float] | None:
        """Return the mean over the first and over the last iteration (or update, if iterations were not logged).

        A mean is NaN if a value in it is not finite.
        """
        series = self.scalars.get(tag)
        if series is None:
            return None
        iteration = self.get("data/iteration")
        if iteration is None or tag.startswith(OF_NO_ITERATION):
            return float(series.values[0]), float(series.values[-1])
        number_of = dict(zip(iteration.steps.tolist(), iteration.values.tolist(), strict=True))
        where = np.array([number_of.get(step, np.nan) for step in series.steps.tolist()])
        if not np.isfinite(where).any():
            return float(series.values[0]), float(series.values[-1])
        in_first = where == np.nanmin(where)
        in_last = where == np.nanmax(where)
        return float(series.values[in_first].mean()), float(series.values[in_last].mean())

    @property
    def shown_by(self) -> Shown:
        """The headline metric of evaluations: accuracy or mean reward.

        Without logged evaluations it is the one that the summary has.
        """
        if not any(tag.startswith("val/") for tag in self.scalars):
            accuracy, reward = (number(self.summary.get(f"{name}_after")) for name in ("accuracy", "reward"))
            if accuracy is None and reward is not None:
                return "mean reward"
        extremes = {}
        if (lowest := self.get("val/lowest_score")) is not None:
            extremes["val/lowest_score"] = lowest.values.min()
        if (highest := self.get("val/highest_score")) is not None:
            extremes["val/highest_score"] = highest.values.max()
        return shown_by([extremes], named=self.setting("data", "evaluation", "accuracy_reward") is not None)

    @property
    def held_out_tag(self) -> str:
        """Tag of the headline metric of evaluations."""
        return ACCURACY if self.shown_by == "accuracy" else REWARD

    def held_out(self) -> tuple[float | None, float | None]:
        """Return the headline metric before and after training, from the summary, else from the evaluations.

        A single evaluation counts as the one before. The summary of a run that was resumed into a new folder begins
        with an evaluation of the old one: what the folder holds is then compared.
        """
        series = self.get(self.held_out_tag)
        first = None if series is None else float(series.values[0])
        last = None if series is None or len(series) < 2 else float(series.values[-1])
        name = "accuracy" if self.shown_by == "accuracy" else "reward"
        before, after = (number(self.summary.get(f"{name}_{when}")) for when in ("before", "after"))
        if first is None or last is None or before is None:
            return first if before is None else before, last if after is None else after
        if not equal(before, first, max(abs(before), 1.0), SINGLE):  # event files hold 32 bits
            return first, last
        return before, last if after is None else after

    def accuracy(self) -> tuple[float | None, float | None]:
        """Return :meth:`held_out` if it is an accuracy; a pair of None otherwise."""
        return self.held_out() if self.shown_by == "accuracy" else (None, None)


def number(value: Any) -> float | None:
    """Return a finite number as a float, anything else as None."""
    return float(value) if isinstance(value, int | float) and is_finite(value) else None


def labels(runs: Sequence[Run]) -> list[str]:
    """Return the shortest labels that tell the runs apart: objective, with seed, with model, or the folder."""
    for parts in (("objective",), ("objective", "seed"), ("objective", "model"), ("objective", "model", "seed")):
        candidates = [", ".join(_part_of_label(run, part) for part in parts) for run in runs]
        if len(set(candidates)) == len(runs):
            return candidates
    folders = [run.folder.resolve() for run in runs]
    common = Path(os.path.commonpath(folders))
    below = [folder.relative_to(common).parts for folder in folders]
    while all(len(parts) > 1 for parts in below) and len({parts[-1] for parts in below}) == 1:
        below = [parts[:-1] for parts in below]  # a/quickstart/version_0, b/quickstart/version_0: a, b
    return [f"{run.objective}, {'/'.join(parts)}" for run, parts in zip(runs, below, strict=True)]


def _part_of_label(run: Run, part: str) -> str:
    return f"seed {run.seed}" if part == "seed" else str(getattr(run, part))
