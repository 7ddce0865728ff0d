"""Mix several sources of prompts in one run, each with its share of every iteration and its own rewards."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.files import open_prompts, read_prompts
from gspo_lightning.data.prompts.on_demand import OnDemand, place_of
from gspo_lightning.data.prompts.prompt_set import Demonstration, PromptSet, Record
from gspo_lightning.rewards import Reward
from gspo_lightning.rewards.by_record import ByRecord, Judge, Rewards, chosen

log = logging.getLogger(__name__)

SOURCE = "source"
"""Name of the column that holds the source of a record."""


@dataclass(frozen=True)
class MixtureSource:
    """One source of a mixture."""

    train: PromptSet | str
    """Prompts of the source: anything that ``data.train`` takes except a mixture."""
    weight: float = 1.0
    """Share of every iteration, relative to the other sources."""
    columns: dict[str, str | list[str]] | None = None
    """Our name of a column -> the source's; None takes ``data.columns``."""
    rewards: Rewards | None = None
    """Rewards for the source's records; they replace those of the same name in ``data.rewards``."""
    name: str | None = None
    """Name in metrics and in the column ``source``; None takes the file's name without its ending, or the class's."""
    val: PromptSet | str | None = None
    """Held-out prompts of the source. Unless ``data.val`` is given, it is all of these together."""

    @property
    def called(self) -> str:
        """Name of the source, given or derived."""
        if self.name is not None:
            return self.name
        return Path(self.train).name.partition(".")[0] if isinstance(self.train, str) else type(self.train).__name__


class Mixture(PromptSet):
    """Records of several sources, with a column ``source`` that names the source of each.

    An iteration's prompts are divided by weight, rounded to whole prompts; later iterations make up for the rounding.
    Metrics of each source are logged under ``source/<name>/``.

    Args:
        sources: the sources to mix.

    Raises:
        UserError: no source, two with one name, a weight not above 0, or a mixture within a mixture.
    """

    def __init__(self, sources: list[MixtureSource]) -> None:
        self.sources = [MixtureSource(**s) if isinstance(s, Mapping) else s for s in sources]
        self.columns: Mapping[str, str | list[str]] = {}
        """Columns (``data.columns``) for sources without their own."""
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
        """Names of the sources, in order."""
        return [source.called for source in self.sources]

    def records(self) -> Sequence[Record]:
        """Return every record of every source, one source after another.

        Raises:
            UserError: a source cannot be read; names it.
        """
        return _Joined([(source.called, self._read(source)) for source in self.sources])

    def demonstrations(self) -> Sequence[Demonstration]:
        """Return the demonstrations of every source, one source after another."""
        return [pair for s in self.sources for pair in open_prompts(s.train, s.columns or {}).demonstrations()]

    def held_out(self) -> Mixture | None:
        """Return the held-out prompts of all sources as a mixture; None if no source has any."""
        held_out = [
            replace(source, train=source.val, val=None, name=source.called)
            for source in self.sources
            if source.val is not None
        ]
        return Mixture(held_out) if held_out else None

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
    """Records of several sources, one after another, each with its source's name."""

    def __init__(self, sources: Sequence[tuple[str, Sequence[Record]]]) -> None:
        self.sources = sources
        self.ends = list(accumulate(len(records) for _, records in sources))

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[Record]:
        """Yield records in order; this reads every file once from beginning to end."""
        return ({**record, SOURCE: name} for name, records in self.sources for record in records)

    def at(self, place: int) -> Record:
        """Return the record at a place."""
        number, inside = self._inside(place)
        name, records = self.sources[number]
        return {**records[inside], SOURCE: name}

    def place(self, number: int) -> str:
        """Return the name that messages use for a record."""
        source, inside = self._inside(number)
        name, records = self.sources[source]
        return f"source {name}, {place_of(records, inside)}"

    def _inside(self, place: int) -> tuple[int, int]:
        number = bisect_right(self.ends, place)
        return number, place - (self.ends[number - 1] if number else 0)


def all_rewards(given: Mapping[str, Any], *sets: object) -> dict[str, Judge]:
    """Return the rewards of a run: those for all records, combined with those of single sources.

    Args:
        given: ``data.rewards``.
        sets: the prompt sets of the run; only mixtures bring rewards.

    Raises:
        UserError: a source's reward chooses by a column, or has the name of a reward in ``data.rewards`` that chooses
            by a column other than ``source``.
    """
    judges = chosen(given)
    sources = [source for prompts in sets if isinstance(prompts, Mixture) for source in prompts.sources]
    by_name: dict[str, dict[str, Reward]] = {}  # of a reward -> name of a source -> the source's own
    for source in sources:
        source_judges = chosen(source.rewards or {}, f"data.train.sources.{source.called}.rewards")
        for name, judge in source_judges.items():
            if isinstance(judge, ByRecord):
                raise UserError(
                    f"data.rewards.{name}",
                    "chooses by a column, within a source",
                    fix="choose in data.rewards: {by: source, ...}",
                )
            by_name.setdefault(name, {}).setdefault(source.called, judge)
    for name, rewards in by_name.items():
        common = judges.get(name)
        if isinstance(common, ByRecord):
            if common.by != SOURCE:
                raise UserError(
                    f"data.rewards.{name}",
                    f"chooses by {common.by!r}, and the source {next(iter(rewards))!r} has one of that name, too",
                    fix="give one of the two another name",
                )
            judges[name] = ByRecord(SOURCE, {**common.rewards, **rewards}, common.default)
        else:
            judges[name] = ByRecord(SOURCE, rewards, common)
    return judges
