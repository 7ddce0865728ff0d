"""The prompt sets of a run, read once and encoded: train, val, test and predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gspo_lightning.distributed import rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.prompts.base import PromptSet
from gspo_lightning.prompts.encode import encode_prompts
from gspo_lightning.prompts.files import open_prompts, read_prompts
from gspo_lightning.resume import fingerprint
from gspo_lightning.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptSets"]


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
    read: dict[str, list[Prompt]] = field(default_factory=dict)
    """Those that have been read."""

    def load(self, name: str, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
        """The prompts of a set; none where it has no source.

        Raises:
            UserError: they cannot be read, or none is usable.
        """
        source = self.sources[name]
        if source is None or name in self.read:
            return self.read.get(name, [])
        try:
            records = read_prompts(open_prompts(source, self.columns))
        except UserError as error:
            raise UserError(f"data.{name}", error.problem, fix=error.fix) if error.field == "data" else error from None
        self.read[name] = encode_prompts(
            records,
            tokenizer,
            max_prompt_tokens=self.max_prompt_tokens,
            system_prompt=self.system_prompt,
            chat_template_kwargs=self.chat_template_kwargs,
            field=f"data.{name}",
        )
        return self.read[name]

    def share(self, name: str, limit: int | None, batch_size: int) -> list[list[Prompt]]:
        """This rank's part of the first ``limit`` prompts of a set, in batches."""
        rank, world = rank_and_world()
        mine = self.read.get(name, [])[:limit][rank::world]
        return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]

    def examples(self, count: int) -> list[Prompt]:
        """About so many prompts of each set, from all over it."""
        return [p for prompts in self.read.values() for p in _spread(prompts, count)]

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Number and checksum of the prompts that were read, by name of their set."""
        return {name: fingerprint(prompts) for name, prompts in self.read.items()}


def _spread(prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
    return prompts[:: max(1, len(prompts) // count)][:count]
