"""The prompt sets of a run, read through and checked once: train, val, test and predict."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gspo_lightning.distributed import rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.prompts.base import PromptSet
from gspo_lightning.prompts.encode import EncodedPrompts, Encoder
from gspo_lightning.prompts.files import open_prompts, read_prompts
from gspo_lightning.prompts.on_demand import OnDemand
from gspo_lightning.prompts.survey import Survey, file_of
from gspo_lightning.resume import Fingerprint
from gspo_lightning.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptSets"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PromptSets:
    """Prompts by name of their set.

    Args:
        sources: name -> prompt set, file or hub id; None where there is none.
        columns: our word -> the data's.
        max_prompt_tokens: longer prompts are dropped with a message, never cut.
        system_prompt: put before every prompt; needs a chat template.
        chat_template_kwargs: passed to the chat template.
    """

    sources: Mapping[str, PromptSet | str | None]
    columns: Mapping[str, str | list[str]]
    max_prompt_tokens: int
    system_prompt: str | None
    chat_template_kwargs: dict[str, Any]
    read: dict[str, EncodedPrompts] = field(default_factory=dict)
    """Those that have been read."""
    _seen: dict[str, Fingerprint] = field(default_factory=dict)

    def load(self, name: str, tokenizer: PreTrainedTokenizerBase) -> Sequence[Prompt]:
        """The prompts of a set; none where it has no source.

        Raises:
            UserError: they cannot be read, or none is usable.
        """
        source = self.sources[name]
        if source is None or name in self.read:
            return self.read.get(name, ())
        try:
            records = read_prompts(open_prompts(source, self.columns))
        except UserError as error:
            raise UserError(f"data.{name}", error.problem, fix=error.fix) if error.field == "data" else error from None
        encoder = Encoder(tokenizer, self.system_prompt, self.chat_template_kwargs, f"data.{name}")
        seen, survey = Fingerprint(), Survey()

        def see(prompt: Prompt) -> None:
            seen.add(prompt)
            survey.add(prompt)

        self.read[name], self._seen[name] = EncodedPrompts(records, encoder, self.max_prompt_tokens, see), seen
        if name == "train" and (file := file_of(source)) is not None and os.environ.get("LOCAL_RANK", "0") == "0":
            for line in survey.lines(file):
                log.info("data.train: %s", line)
        return self.read[name]

    def share(self, name: str, limit: int | None, batch_size: int) -> Sequence[list[Prompt]]:
        """This rank's part of the first ``limit`` prompts of a set, in batches."""
        rank, world = rank_and_world()
        prompts = self.read.get(name, ())
        return _Batches(prompts, range(len(prompts))[:limit][rank::world], batch_size)

    def examples(self, count: int) -> list[Prompt]:
        """About so many prompts of each set, from all over it."""
        return [p for prompts in self.read.values() for p in _spread(prompts, count)]

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Number and checksum of the prompts that were read, by name of their set."""
        return {name: seen.value() for name, seen in self._seen.items()}


@dataclass(frozen=True, slots=True)
class _Batches(OnDemand[list[Prompt]]):
    prompts: Sequence[Prompt]
    places: range
    size: int

    def __len__(self) -> int:
        return -(-len(self.places) // self.size)

    def at(self, place: int) -> list[Prompt]:
        return [self.prompts[i] for i in self.places[place * self.size : (place + 1) * self.size]]


def _spread(prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
    return prompts[:: max(1, len(prompts) // count)][:count]
