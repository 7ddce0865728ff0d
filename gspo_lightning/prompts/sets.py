"""Prompt sets of a run, read and checked once: train, val, test and predict."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.distributed import rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.prompts.base import PromptSet, Record
from gspo_lightning.prompts.encode import EncodedPrompts, Encoder
from gspo_lightning.prompts.files import open_prompts, read_prompts
from gspo_lightning.prompts.mixed_order import Part
from gspo_lightning.prompts.mixture import SOURCE, Mixture
from gspo_lightning.prompts.number_column import NumberColumn
from gspo_lightning.prompts.on_demand import OnDemand
from gspo_lightning.prompts.pictures.settings import Pictures
from gspo_lightning.prompts.quotas import largest_remainder
from gspo_lightning.prompts.survey import Survey, file_of
from gspo_lightning.prompts.weighted import LEAST, MOST, WEIGHT
from gspo_lightning.resume import Fingerprint
from gspo_lightning.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptSets"]

log = logging.getLogger(__name__)
MOST_SOURCES = 32
"""Largest number of texts in the column ``source`` that get metrics of their own."""


@dataclass(slots=True)
class PromptSets:
    """Prompt sets of a run by name.

    Args:
        sources: name -> prompt set, file or hub id; None if there is none.
        columns: our name of a column -> the data's.
        max_prompt_tokens: longer prompts are dropped with a message, never cut.
        system_prompt: put before every prompt; needs a chat template.
        chat_template_kwargs: passed to the chat template.
        pictures: how pictures are read.
    """

    sources: Mapping[str, PromptSet | str | None]
    columns: Mapping[str, str | list[str]]
    max_prompt_tokens: int
    system_prompt: str | None
    chat_template_kwargs: dict[str, Any]
    pictures: Pictures = field(default_factory=Pictures)
    read: dict[str, EncodedPrompts] = field(default_factory=dict)
    """Sets read so far."""
    _notes: dict[str, Notes] = field(default_factory=dict)
    _parts: dict[str, list[Part]] = field(default_factory=dict)

    def load(self, name: str, tokenizer: PreTrainedTokenizerBase) -> Sequence[Prompt]:
        """Read the prompts of a set once and return them; empty if it has no source.

        Raises:
            UserError: they cannot be read, or none is usable.
        """
        source = self.sources[name]
        if source is None or name in self.read:
            return self.read.get(name, ())
        if isinstance(source, Mixture):
            source.columns = self.columns
        encoder = Encoder(tokenizer, self.system_prompt, self.chat_template_kwargs, f"data.{name}", self.pictures)
        notes, survey, file = Notes(name == "train"), Survey(), file_of(source) if name == "train" else None

        def see(prompt: Prompt) -> None:
            notes.add(prompt)
            if file is not None:
                survey.add(prompt)

        try:
            records = read_prompts(open_prompts(source, self.columns))
            found = EncodedPrompts(records, encoder, self.max_prompt_tokens, see)
        except UserError as error:
            raise UserError(f"data.{name}", error.problem, fix=error.fix) if error.field == "data" else error from None
        self.read[name], self._notes[name] = found, notes
        self._parts[name] = _parts(source, records, found)
        if file is not None and os.environ.get("LOCAL_RANK", "0") == "0":
            for line in survey.lines(file):
                log.info("data.train: %s", line)
        return found

    def parts(self, name: str) -> list[Part]:
        """Return the sources of a set, or the whole set as one source without a name."""
        return self._parts.get(name, [])

    def difficulty(self, name: str) -> NDArray[np.float64]:
        """Return the difficulties [n] of a set, NaN if a record has none.

        Raises:
            UserError: a difficulty is not a number.
        """
        found, where = self._notes[name].difficulty, self.read[name].where
        return found.values(f"data.{name}", where)

    def weights(self, name: str) -> NDArray[np.float64] | None:
        """Return the weights [n] of a training set: how often each prompt is drawn; None if no record has one.

        Weights are relative to the other prompts of the source.

        Raises:
            UserError: a weight that is not a number, or out of range.
        """
        found, where = self._notes[name].weight, self.read[name].where
        return found.values(f"data.{name}", where) if found.given else None

    def source_names(self, name: str) -> list[str]:
        """Return the texts in the column ``source`` of a set; empty if there is only one or more than 32."""
        found = self._notes[name].sources if name in self._notes else set()
        return sorted(found) if 1 < len(found) <= MOST_SOURCES else []

    def share(self, name: str, limit: int | None, batch_size: int) -> Sequence[list[Prompt]]:
        """Return this rank's part of the first ``limit`` prompts of a set, in batches."""
        rank, world = rank_and_world()
        return _Batches(self.read.get(name, ()), self.first(name, limit)[rank::world], batch_size)

    def first(self, name: str, limit: int | None) -> Sequence[int]:
        """Return the places of the first ``limit`` prompts of a set; a mixture divides them among sources by weight."""
        parts = self.parts(name)
        total = len(self.read.get(name, ()))
        if limit is None or limit >= total or len(parts) < 2:
            return range(total)[:limit]
        weights = [Fraction(str(part.weight)) for part in parts]
        counts = largest_remainder([limit * weight / sum(weights) for weight in weights], limit)
        return [i for part, count in zip(parts, counts, strict=True) for i in part.places[:count]]

    def examples(self, count: int) -> list[Prompt]:
        """Return about ``count`` prompts of each set, spread over it and over its sources."""
        return [
            prompts[i]
            for name, prompts in self.read.items()
            for part in self.parts(name)
            for i in _spread(part.places, -(-count // len(self.parts(name))))
        ]

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Return number and checksum of the prompts that were read, by name of their set."""
        return {name: notes.fingerprint.value() for name, notes in self._notes.items()}


@dataclass(frozen=True, slots=True)
class _Batches(OnDemand[list[Prompt]]):
    prompts: Sequence[Prompt]
    places: Sequence[int]
    size: int

    def __len__(self) -> int:
        return -(-len(self.places) // self.size)

    def at(self, place: int) -> list[Prompt]:
        return [self.prompts[i] for i in self.places[place * self.size : (place + 1) * self.size]]


def _spread(places: range, count: int) -> range:
    return places[:: max(1, len(places) // count)][:count]


def _parts(source: PromptSet | str, records: Sequence[Record], prompts: EncodedPrompts) -> list[Part]:
    if not isinstance(source, Mixture):
        return [Part("", 1.0, range(len(prompts)))]
    ends = [prompts.place_of(end) for end in records.ends]  # type: ignore[attr-defined]
    begins = [0, *ends[:-1]]
    spans = zip(source.sources, begins, ends, strict=True)
    return [Part(one.called, one.weight, range(begin, end)) for one, begin, end in spans]


class Notes:
    """Facts about a prompt set, collected in the one pass over it.

    Args:
        train: True for the training set, the only one whose column ``weight`` counts.
    """

    def __init__(self, train: bool) -> None:
        self.fingerprint = Fingerprint()
        self.sources: set[str] = set()
        self.difficulty = NumberColumn("difficulty", math.nan, -math.inf, math.inf, "the larger the harder")
        self.weight = NumberColumn(WEIGHT, 1.0, LEAST, MOST, "twice as large is drawn twice as often")
        self._columns = (self.difficulty, self.weight) if train else (self.difficulty,)

    def add(self, prompt: Prompt) -> None:
        """Add the next prompt."""
        self.fingerprint.add(prompt)
        columns = prompt.columns
        if SOURCE in columns and len(self.sources) <= MOST_SOURCES and isinstance(columns[SOURCE], str):
            self.sources.add(columns[SOURCE])
        for column in self._columns:
            column.add(prompt)
