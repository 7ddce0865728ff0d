"""Data of a run folder, as the page asks for it: plain JSON values, also of a run that is damaged or still written."""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.core.errors import InfrastructureError, first_line
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.report.answers import ANSWERS, read_answers, thumbnail_file, whole_and_damaged
from gspo_lightning.report.ending import band_of, by_iteration
from gspo_lightning.report.read import read_run
from gspo_lightning.report.resumes import read_resumes
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.view.index import RolloutIndex
from gspo_lightning.report.view.plain import clean, spread
from gspo_lightning.report.view.ratios import ratio_histograms
from gspo_lightning.report.view.responses import all_verdicts
from gspo_lightning.report.words import headline

POINTS = 1_200
"""Points of a curve that are sent, at most; of each stretch the lowest and the highest value are kept."""
DOTS, SPREAD, SIDE_BY_SIDE = 1_500, 12, 4
"""Responses in the figure of ratios; iterations of a prompt over time, and responses of each."""
GROUP = 256
"""Rows of a group that are sent, at most."""
EXPORTED = (200, 5_000)
"""Least and largest number of responses in one piece of an export, which is about 2 MB of JSON."""
PROMPTS = 2_000
"""Prompts that are sent to be compared with those of another run, at most."""
_HASH = re.compile(r"[0-9a-f]{64}")


class RunData:
    """Everything that the page shows of a run; read again when its files have changed.

    Args:
        folder: the run folder.
        number: its place among the given ones.
        listed: True if it was searched for below a given folder; the page then begins with the list of runs.

    Raises:
        UserError: it is not a run folder.
    """

    def __init__(self, folder: Path, number: int = 0, *, listed: bool = False) -> None:
        self.folder, self.number, self.label = folder, number, folder.name
        self.listed = listed
        self._lock, self._run = threading.RLock(), read_run(folder, command="gspo view")
        self._stamp = stamp_of(folder)
        self._histograms: tuple[Any, dict[str, Any]] | None = None
        self.index = RolloutIndex(folder)
        self.trouble = ""
        """Why recorded responses cannot be shown; empty if they can."""
        self.indexed = False
        """True once all recorded responses that were there at the start are in the index."""

    def refresh(self) -> None:
        """Read recorded responses that are new.

        Raises:
            InfrastructureError: their index cannot be written.
        """
        try:
            self.index.refresh()
        except InfrastructureError as error:
            self.trouble = first_line(error)
            raise
        self.trouble, self.indexed = "", True

    @property
    def run(self) -> Run:
        """Scalars, config, summary and alarms."""
        with self._lock:
            stamp = stamp_of(self.folder)
            if stamp != self._stamp:
                self._run, self._stamp = read_run(self.folder, command="gspo view"), stamp
            return self._run

    def overview(self) -> dict[str, Any]:
        """Return facts, verdicts, alarms, the tags with their meaning, evaluations, config and versions."""
        run, facts = self.run, self.index.facts()
        problems = (
            list(run.problems) if run.finished or self._damaged(run) else [p for p in run.problems if "cut" not in p]
        )
        if facts["damaged"]:
            where = "; ".join(facts["wrong"])
            problems.append(f"{facts['damaged']} damaged lines of recorded responses were left out ({where})")
        answers, wrong = whole_and_damaged(self.folder)
        if wrong:
            lines = ", ".join(map(str, wrong[:5]))
            problems.append(f"{len(wrong)} damaged lines of held-out answers were left out ({ANSWERS}: line {lines})")
        if self.trouble:
            problems.append(self.trouble)
        return clean(
            {
                "number": self.number, "folder": str(self.folder), "label": self.label, "listed": self.listed,
                "objective": run.objective, "model": run.model, "seed": run.seed, "date": run.date,
                "finished": run.finished, "updates": run.updates, "headline": headline(run), "problems": problems,
                "verdicts": [verdict.plain() for verdict in all_verdicts(run, self.index, answers)],
                "alarms": run.alarms, "facts": facts, "indexed": self.indexed,
                "tags": {tag: _meaning(tag, run) for tag in sorted(run.scalars) if not tag.startswith("cold_start/")},
                "held_out_tag": run.held_out_tag, "held_out": list(run.held_out()),
                "reward": run.first_and_last("reward/mean"), "iterations": run.iterations,
                "config": dict(flat(run.config)), "events": self._events(run),
                "versions": run.summary.get("versions", {}),
                "machine": (machine if isinstance(machine := run.summary.get("machine"), dict) else {})
                | {k: run.summary[k] for k in ("seconds", "peak_memory_mb") if k in run.summary},
                "kind": hashlib.blake2b(run.kind.encode(), digest_size=8).hexdigest() if run.kind else "",
                "stamp": list(stamp_of(self.folder)),
            }
        )  # fmt: skip

    def _damaged(self, run: Run) -> bool:
        return any("damaged" in problem for problem in run.problems)

    def _events(self, run: Run) -> list[dict[str, Any]]:
        """Return what changed on the way: resumes and their changed settings, learning rates, rollbacks."""
        found: list[dict[str, Any]] = []
        for resume in read_resumes(self.folder):
            text = "resumed" + (": " + "; ".join(resume["changes"]) if resume["changes"] else "")
            found.append({"update": resume["update"], "what": text})
        if (rate := run.get("optim/lr")) is not None and len(rate) > 1:
            jumps = np.flatnonzero(np.abs(np.diff(rate.values)) > 0.3 * np.abs(rate.values[:-1]))
            for i in jumps[:20]:
                text = f"learning rate {rate.values[i]:.3g} → {rate.values[i + 1]:.3g}"
                found.append({"update": int(rate.steps[i + 1]), "what": text})
        if (series := run.get("collapse/rollbacks")) is not None and len(series) > 1:
            for i in np.flatnonzero(np.diff(series.values) > 0)[:20]:
                found.append({"update": int(series.steps[i + 1]), "what": "rollback"})
        return found

    def series(self, tags: Sequence[str], between: tuple[float, float] | None = None) -> dict[str, Any]:
        """Return tag -> [steps, values], thinned to :data:`POINTS`; tags that the run lacks are left out.

        A metric that varies within iterations has [steps, means, lowest, highest] of them as a third entry, and so has
        a curve that was thinned. Its values are extremes then, of which no mean can be taken: a fourth entry says so.

        Args:
            tags: of scalars.
            between: first and last update of a part, which comes with a point on either side; None: the whole run.
        """
        run = self.run
        return {
            tag: [*thinned(part := part_of(run.scalars[tag], between)), *_ranges(run, tag, part, between)]
            for tag in tags
            if tag in run.scalars
        }

    def rollouts(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return recorded responses of a query (:meth:`gspo_lightning.report.view.index.RolloutIndex.find`).

        Raises:
            ValueError: a number is none.
        """
        offset = max(0, int(query.get("offset") or 0))
        return clean(self.index.find(query, limit=100, offset=offset)) | {"offset": offset}

    def rows(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return responses in full, with tokens: a group.

        Raises:
            ValueError: a number is none.
        """
        return clean({"rows": self._pictured(self.index.rows(query, GROUP))})

    def prompt(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a prompt over time: ``rewards``, [iteration, mean] of all, and ``rows`` in full of some iterations.

        Raises:
            ValueError: a number is none.
        """
        number = int(query.get("prompt_id", ""))
        of = self.index.columns("iteration", "avg(reward)", where=f"WHERE prompt_id = {number} GROUP BY iteration")
        rewards = [list(row) for row in of]
        rows: list[dict[str, Any]] = []
        for iteration, _ in spread(rewards, SPREAD):
            rows += self.index.rows({"prompt_id": str(number), "iteration": str(iteration)}, SIDE_BY_SIDE)
        return clean({"rewards": rewards, "rows": self._pictured(rows)})

    def ratios(self) -> dict[str, Any]:
        """Return ``band`` and ``dots``: recorded responses as [update, log s_i, A, clip, iteration, prompt, sample]."""
        known = "WHERE update_ IS NOT NULL AND log_s IS NOT NULL"
        ((count,),) = self.index.columns("count(*)", where=known)
        names = ("update_", "log_s", "advantage", "clip", "iteration", "prompt_id", "sample")
        dots = self.index.columns(*names, where=f"{known} AND n % {max(1, -(-count // DOTS))} = 0")
        some = self.index.rows({"tokens": "1"}, 1) if self.run.sequence_level else []
        return clean({"dots": list(dots), "band": some[0].get("band") if some else None})

    def histograms(self) -> dict[str, Any]:
        """Return histograms of ratios (:func:`gspo_lightning.report.view.ratios.ratio_histograms`).

        A view asks for them whenever it is drawn: event files are read again only if the run has changed.
        """
        with self._lock:
            run = self.run  # of this very stamp: another request may read the run anew
            state = (self._stamp, self.index.facts()["rollouts"])
            if self._histograms is None or self._histograms[0] != state:
                self._histograms = (state, clean(ratio_histograms(run, self.index)))
            return self._histograms[1]

    def export(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a piece of the responses of a query with their whole texts, without tokens.

        ``last`` is the number of the last response that was recorded when the export began: later ones are left out.

        Raises:
            ValueError: a number is none.
        """
        offset = max(0, int(query.get("offset") or 0))
        limit = max(EXPORTED[0], self.index.sample(EXPORTED[1]))
        return clean(self.index.find(query, limit=limit, offset=offset, whole=True)) | {"offset": offset}

    def texts(self) -> dict[str, Any]:
        """Return the ends of recorded prompts and their last iterations, to be found again in another run."""
        first = f"SELECT DISTINCT prompt_id FROM rollouts WHERE prompt_id NOT NULL ORDER BY prompt_id LIMIT {PROMPTS}"
        columns = self.index.columns(
            "prompt_id", "length(prompt)", "substr(prompt, -400)", "max(iteration)",
            where=f"WHERE prompt_id IN ({first}) GROUP BY prompt_id",
        )  # fmt: skip
        names = ("prompt_id", "characters", "prompt", "iteration")
        return clean({"rows": [dict(zip(names, row, strict=True)) for row in columns]})

    def _pictured(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave those pictures in the rows whose thumbnails are there, and count the others."""
        for row in rows:
            if isinstance(names := row.get("pictures"), list):
                row["pictures"] = [name for name in names if self._thumbnail(name) is not None]
                row["unseen_pictures"] = len(names) - len(row["pictures"])
        return rows

    def _thumbnail(self, name: Any) -> Path | None:
        if not isinstance(name, str) or not _HASH.fullmatch(name):
            return None
        file = self.folder / thumbnail_file(name)
        inside = file.resolve().is_relative_to(self.folder.resolve())  # a link may point to anywhere
        return file if inside and file.is_file() else None

    def picture(self, name: str) -> bytes:
        """Return the thumbnail of a recorded picture, a PNG file.

        Raises:
            KeyError: there is none.
        """
        if (file := self._thumbnail(name)) is None:
            raise KeyError(name)
        return file.read_bytes()

    def answers(self) -> dict[str, Any]:
        """Return held-out answers, by prompt and update."""
        return clean({"rows": self._pictured(read_answers(self.folder)[-4_000:])})

    def prompts(self) -> dict[str, Any]:
        """Return prompts that were recorded in several iterations, the most frequent first."""
        found = self.index.columns(
            "prompt_id", "min(substr(prompt, 1, 200))", "count(DISTINCT iteration)", "avg(reward)",
            where="GROUP BY prompt_id HAVING count(DISTINCT iteration) > 1",
        )  # fmt: skip
        rows = sorted(found, key=lambda row: -row[2])[:200]
        names = ("prompt_id", "prompt", "iterations", "reward")
        return clean({"rows": [dict(zip(names, row, strict=True)) for row in rows]})


def stamp_of(folder: Path) -> tuple[int, int]:
    """Return a mark that changes whenever a file of the run does."""
    found = [path.stat() for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    return sum(status.st_size for status in found), max((status.st_mtime_ns for status in found), default=0)


def thinned(series: Series) -> list[list[float | int | None]]:
    """Return [steps, values] with :data:`POINTS` points at most: the extremes of every stretch of a longer curve."""
    steps, values = series.steps, series.values
    if len(steps) > POINTS:
        stretch = -(-2 * len(steps) // POINTS)
        keep: set[int] = set()
        for start in range(0, len(steps), stretch):
            part = values[start : start + stretch]
            if np.isfinite(part).any():
                keep |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
        chosen = sorted(keep)
        steps, values = steps[chosen], values[chosen]
    return [steps.tolist(), [value if math.isfinite(value) else None for value in values.tolist()]]


def part_of(series: Series, between: tuple[float, float] | None) -> Series:
    """Return the part of a series between two updates, with a point on either side."""
    if between is None:
        return series
    first = max(0, int(np.searchsorted(series.steps, between[0], side="left")) - 1)
    last = int(np.searchsorted(series.steps, between[1], side="right")) + 1
    return Series(series.steps[first:last], series.values[first:last])


def _ranges(run: Run, tag: str, part: Series, between: tuple[float, float] | None) -> list[Any]:
    """Return the third and the fourth entry of a curve; none if its points say everything."""
    is_thinned = len(part) > POINTS
    ranges = by_iteration(run, tag)
    if ranges is not None and between is not None:
        within = (ranges[0] >= between[0]) & (ranges[0] <= between[1])
        ranges = tuple(column[within] for column in ranges)
    elif ranges is None and is_thinned and not tag.startswith("val/"):  # evaluations have intervals of their own
        part = part.finite
        ranges = (part.steps, part.values, part.values, part.values)
    if ranges is None:
        return []
    return [[column.tolist() for column in _merged(*ranges)], is_thinned]


def _merged(
    steps: NDArray[Any], means: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> tuple[NDArray[Any], ...]:
    """Merge neighbours [I] into :data:`POINTS` ranges at most: last steps, means, lowest and highest values."""
    if len(steps) <= POINTS:
        return steps, means, low, high
    starts = np.arange(0, len(steps), -(-len(steps) // POINTS))
    counts = np.diff([*starts, len(steps)])
    merged_means = np.add.reduceat(means, starts) / counts
    merged_low = np.minimum.reduceat(low, starts)
    return steps[starts + counts - 1], merged_means, merged_low, np.maximum.reduceat(high, starts)


def _meaning(tag: str, run: Run) -> dict[str, Any]:
    spec, band = lookup(tag), band_of(run, tag)
    if spec is None:
        return {}
    return {
        "definition": spec.definition, "unit": spec.unit, "healthy": spec.healthy, "do": spec.what_to_do,
        "group": spec.group, "band": None if band is None else [band.above, band.below],
    }  # fmt: skip


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a config as (dotted name, value)."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
