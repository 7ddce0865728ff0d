"""Prompt sets of a run, read and checked once: train, val, test and predict."""

from __future__ import annotations

import logging
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt, SystemPrompt
from gspo_lightning.data.corpus.decontamination_report import about
from gspo_lightning.data.prompts.encode import EncodedPrompts, Encoder
from gspo_lightning.data.prompts.files import PromptFile, open_prompts, read_prompts
from gspo_lightning.data.prompts.mixed_order import Part
from gspo_lightning.data.prompts.mixture import SOURCE, Mixture
from gspo_lightning.data.prompts.on_demand import OnDemand
from gspo_lightning.data.prompts.pictures.reading import Pictures
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record
from gspo_lightning.data.prompts.weighted import LEAST, MOST, WEIGHT, largest_remainder
from gspo_lightning.resume import Fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
MOST_SOURCES = 32
"""Largest number of texts in the column ``source`` that get metrics of their own."""
_SAME = (
    "data.val: the same %d prompts as data.train, so held-out accuracy is measured on prompts that are trained on "
    "(gspo data split divides a file; a task such as ChainTask takes another split or seed)"
)


class Survey:
    """Lengths and hashes of the prompts in use, 12 bytes each."""

    def __init__(self) -> None:
        self._lengths = array("I")
        self._hashes = array("q")

    def add(self, prompt: Prompt) -> None:
        """Add one prompt."""
        self._lengths.append(len(prompt.token_ids))
        self._hashes.append(hash((prompt.text, *(picture.sha256 for picture in prompt.media))))

    def lines(self, file: Path) -> Iterator[str]:
        """Yield at most three lines; ``gspo data report`` has the details.

        Raises:
            UserError: the decontamination report of the file cannot be read.
        """
        lengths = np.frombuffer(self._lengths, np.uint32)
        hashes = np.frombuffer(self._hashes, np.int64)
        low, median, high = (int(x) for x in np.percentile(lengths, [0, 50, 100]))
        yield f"{file.name}: {len(lengths):,} prompts of {low:,} to {high:,} tokens, median {median:,}"
        repeated = len(hashes) - len(np.unique(hashes))
        if repeated:
            yield f"{file.name}: {repeated:,} prompts repeat another one exactly (gspo data dedup)"
        report = about(file)
        if report is None:
            yield f"{file.name}: not checked for leaks from benchmarks (gspo data decontaminate)"
        else:
            line, is_valid = report
            yield line if is_valid else f"warning: {line}"


def file_of(source: PromptSet | str | None) -> Path | None:
    """Return the file of a prompt source; None if it is not a file."""
    path = source.path if isinstance(source, PromptFile) else source
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None


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
    system_prompt: SystemPrompt | None
    chat_template_kwargs: dict[str, Any]
    pictures: Pictures = field(default_factory=Pictures)
    read: dict[str, EncodedPrompts] = field(default_factory=dict)
    """Sets read so far."""
    _stats: dict[str, DatasetStats] = field(default_factory=dict)
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
        stats = DatasetStats(name == "train")
        survey = Survey()
        file = file_of(source) if name == "train" else None

        def see(prompt: Prompt) -> None:
            stats.add(prompt)
            if file is not None:
                survey.add(prompt)

        try:
            records = read_prompts(open_prompts(source, self.columns))
            prompts = EncodedPrompts(records, encoder, self.max_prompt_tokens, see)
        except UserError as error:
            raise UserError(f"data.{name}", error.problem, fix=error.fix) if error.field == "data" else error from None
        self.read[name] = prompts
        self._stats[name] = stats
        self._parts[name] = _parts(source, records, prompts)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            if file is not None:
                for line in survey.lines(file):
                    log.info("data.train: %s", line)
            if name == "val" and self.fingerprints().get("train") == stats.fingerprint.value():
                log.warning(_SAME, len(prompts))
        return prompts

    def parts(self, name: str) -> list[Part]:
        """Return the sources of a set, or the whole set as one source without a name."""
        return self._parts.get(name, [])

    def difficulty(self, name: str) -> NDArray[np.float64]:
        """Return the difficulties [n] of a set, NaN if a record has none.

        Raises:
            UserError: a difficulty is not a number.
        """
        column = self._stats[name].difficulty
        where = self.read[name].where
        return column.values(f"data.{name}", where)

    def weights(self, name: str) -> NDArray[np.float64] | None:
        """Return the weights [n] of a training set: how often each prompt is drawn; None if no record has one.

        Weights are relative to the other prompts of the source.

        Raises:
            UserError: a weight that is not a number, or out of range.
        """
        column = self._stats[name].weight
        where = self.read[name].where
        return column.values(f"data.{name}", where) if column.given else None

    def source_names(self, name: str) -> list[str]:
        """Return the texts in the column ``source`` of a set; empty if there is only one or more than 32."""
        names = self._stats[name].sources if name in self._stats else set()
        return sorted(names) if 1 < len(names) <= MOST_SOURCES else []

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
        examples = []
        for name, prompts in self.read.items():
            parts = self.parts(name)
            for part in parts:
                examples += [prompts[i] for i in _spread(part.places, math.ceil(count / len(parts)))]
        return examples

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Return number and checksum of the prompts that were read, by name of their set."""
        return {name: stats.fingerprint.value() for name, stats in self._stats.items()}


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
    parts = []
    for part, begin, end in zip(source.sources, begins, ends, strict=True):
        parts.append(Part(part.called, part.weight, range(begin, end)))
    return parts


class DatasetStats:
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


class NumberColumn:
    """A column of numbers of a prompt set. Memory: 8 bytes a prompt if any prompt has a value, else nothing.

    Args:
        column: its name.
        default: value of prompts that have none.
        least: smallest valid value.
        most: largest valid value.
        meaning: of a value, for messages.
    """

    def __init__(self, column: str, default: float, least: float, most: float, meaning: str) -> None:
        self._column = column
        self._default = default
        self._least = least
        self._most = most
        self._meaning = meaning
        self._count = 0
        self._found = array("d")
        self._wrong: tuple[int, object] | None = None

    @property
    def given(self) -> bool:
        """True if any prompt has a value."""
        return bool(self._found) or self._wrong is not None

    def add(self, prompt: Prompt) -> None:
        """Add the next prompt; a cell of a table is a text, and an empty one is no value."""
        self._count += 1
        value = prompt.columns.get(self._column)
        if value is not None and value != "":
            self._found.extend([self._default] * (self._count - 1 - len(self._found)))
            self._found.append(self._number(prompt.id, value))

    def values(self, field_name: str, where: Callable[[int], str]) -> NDArray[np.float64]:
        """Return the values [n], the default for prompts without one.

        Raises:
            UserError: a value is wrong; names the first one by ``where``.
        """
        if self._wrong is not None:
            number, value = self._wrong
            fault = "out of range" if _as_float(value) is not None else "not a number"
            problem = f"{where(number)}: {self._column!r} is {str(value)[:40]!r}, which is {fault}"
            span = f" from {self._least:g} to {self._most:g}" if math.isfinite(self._least) else ""
            rename = f"rename the column (data.columns: {{own_{self._column}: {self._column}}})"
            raise UserError(field_name, problem, fix=f"write numbers{span} ({self._meaning}), or {rename}")
        self._found.extend([self._default] * (self._count - len(self._found)))
        return np.frombuffer(self._found, dtype=np.float64)

    def _number(self, prompt_id: int, value: object) -> float:
        number = _as_float(value)
        if number is not None and math.isnan(number) and math.isnan(self._default):
            return self._default
        if number is None or math.isinf(number) or not self._least <= number <= self._most:
            self._wrong = self._wrong or (prompt_id, value)
            return self._default
        return number


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
