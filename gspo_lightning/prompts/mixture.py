"""Several sources of prompts in one run, each with its share of every iteration and with rewards of its own."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.prompts.base import Demonstration, PromptSet, Record
from gspo_lightning.prompts.files import open_prompts, read_prompts
from gspo_lightning.prompts.on_demand import OnDemand, place_of
from gspo_lightning.rewards import Reward
from gspo_lightning.rewards.by_record import ByRecord, Judge, Rewards, chosen

__all__ = ["SOURCE", "Mixture", "MixtureSource", "all_rewards"]

log = logging.getLogger(__name__)

SOURCE = "source"
"""The column that says which source a record is from."""


@dataclass(frozen=True)
class MixtureSource:
    """One source of a mixture."""

    train: PromptSet | str
    """Its prompts: anything that ``data.train`` takes except a mixture."""
    weight: float = 1.0
    """Its share of every iteration, relative to the other sources."""
    columns: dict[str, str | list[str]] | None = None
    """Our word -> its own; None takes ``data.columns``."""
    rewards: Rewards | None = None
    """Rewards for its records, in the place of those of the same name in ``data.rewards``."""
    name: str | None = None
    """In metrics and in the column ``source``; None takes the file's name without its ending, or the class's."""
    val: PromptSet | str | None = None
    """Its held-out prompts; ``data.val`` is then all of these, unless it is given."""

    @property
    def called(self) -> str:
        """Its name."""
        if self.name is not None:
            return self.name
        return Path(self.train).name.partition(".")[0] if isinstance(self.train, str) else type(self.train).__name__


class Mixture(PromptSet):
    """Records of several sources. Each says in its column ``source`` which one it is from.

    Every iteration has as many prompts of a source as its weight says, to the nearest whole one; later iterations
    make up for the rounding. Metrics of each are logged under ``source/<name>/``.

    Args:
        sources: what is mixed.

    Raises:
        UserError: no source, two of one name, a weight that is not above 0, or a mixture within a mixture.
    """

    def __init__(self, sources: list[MixtureSource]) -> None:
        self.sources = [MixtureSource(**s) if isinstance(s, Mapping) else s for s in sources]
        self.columns: Mapping[str, str | list[str]] = {}
        """For sources without their own: ``data.columns``."""
        if not self.sources:
            raise UserError("Mixture.sources", "is empty", fix="name at least one: sources: [{train: math.jsonl}]")
        for number, source in enumerate(self.sources):
            field = f"Mixture.sources[{number}]"
            if isinstance(source.train, Mixture) or isinstance(source.val, Mixture):
                raise UserError(f"{field}.train", "is a mixture itself", fix="name its sources here")
            if not (math.isfinite(source.weight) and source.weight > 0):
                fix = "leave a source out rather than give it the weight 0"
                raise UserError(f"{field}.weight", f"is {source.weight}; it must be a number above 0", fix=fix)
            if not source.called or "/" in source.called:
                raise UserError(f"{field}.name", f"is {source.called!r}; it must be a word without '/'")
            if source.called in self.names[:number]:
                raise UserError(f"{field}.name", f"is {source.called!r}, as another source is called", fix="set name:")

    @property
    def names(self) -> list[str]:
        """Of the sources, in order."""
        return [source.called for source in self.sources]

    def records(self) -> Sequence[Record]:
        """Every record of every source, one source after another.

        Raises:
            UserError: one cannot be read; says which.
        """
        return _Joined([(source.called, self._read(source)) for source in self.sources])

    def demonstrations(self) -> Sequence[Demonstration]:
        """Those of every source, one after another."""
        return [pair for s in self.sources for pair in open_prompts(s.train, s.columns or {}).demonstrations()]

    def held_out(self) -> Mixture | None:
        """The held-out prompts of the sources that have some."""
        there = [replace(s, train=s.val, val=None, name=s.called) for s in self.sources if s.val is not None]
        return Mixture(there) if there else None

    def _read(self, source: MixtureSource) -> Sequence[Record]:
        columns = self.columns if source.columns is None else source.columns
        try:
            records = read_prompts(open_prompts(source.train, columns))
        except UserError as error:
            where = "data" if error.field == "data" else error.field
            raise UserError(where, f"source {source.called!r}: {error.problem}", fix=error.fix) from error
        if len(records) and SOURCE in records[0]:
            log.warning(
                "source %r has a column 'source' of its own, which is the name of the source in a mixture: map it if a "
                "reward needs it (columns: {origin: source})", source.called,
            )  # fmt: skip
        return records


class _Joined(OnDemand[Record]):
    """Records of several sources, one after another, each with the name of its own."""

    def __init__(self, sources: Sequence[tuple[str, Sequence[Record]]]) -> None:
        self.sources = sources
        self.ends = list(accumulate(len(records) for _, records in sources))

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[Record]:
        """In order, which reads every file once from its beginning to its end."""
        return ({**record, SOURCE: name} for name, records in self.sources for record in records)

    def at(self, place: int) -> Record:
        """One of them."""
        which, inside = self._inside(place)
        name, records = self.sources[which]
        return {**records[inside], SOURCE: name}

    def place(self, number: int) -> str:
        """How a message names one of them."""
        which, inside = self._inside(number)
        name, records = self.sources[which]
        return f"source {name}, {place_of(records, inside)}"

    def _inside(self, place: int) -> tuple[int, int]:
        which = bisect_right(self.ends, place)
        return which, place - (self.ends[which - 1] if which else 0)


def all_rewards(given: Mapping[str, Any], *sets: object) -> dict[str, Judge]:
    """The rewards of a run: those given for all records, and those that sources bring for theirs.

    Args:
        given: ``data.rewards``.
        sets: the prompt sets of the run; only mixtures bring rewards.

    Raises:
        UserError: a source chooses by a column itself, or brings what ``data.rewards`` chooses by another column.
    """
    found = chosen(given)
    own: dict[str, dict[str, Reward]] = {}
    for source in (source for one in sets if isinstance(one, Mixture) for source in one.sources):
        for name, judge in chosen(source.rewards or {}, f"data.train.sources.{source.called}.rewards").items():
            if isinstance(judge, ByRecord):
                what = "chooses by a column, within a source"
                raise UserError(f"data.rewards.{name}", what, fix="choose in data.rewards: {by: source, ...}")
            own.setdefault(name, {}).setdefault(source.called, judge)
    for name, rewards in own.items():
        common = found.get(name)
        if isinstance(common, ByRecord):
            if common.by != SOURCE:
                what = f"chooses by {common.by!r}, and the source {next(iter(rewards))!r} has one of that name, too"
                raise UserError(f"data.rewards.{name}", what, fix="give one of the two another name")
            found[name] = ByRecord(SOURCE, {**common.rewards, **rewards}, common.default)
        else:
            found[name] = ByRecord(SOURCE, rewards, common)
    return found
