"""Out of memory in a micro-batch: the mini-batch is done again in smaller pieces, and the run remembers."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gspo_lightning.distributed import all_gather_objects, largest, rank_and_world
from gspo_lightning.errors import InfrastructureError, first_line
from gspo_lightning.resume import write_text
from gspo_lightning.types import MicroBatch

__all__ = ["MemoryLimit", "cut_rows", "is_out_of_memory"]

log = logging.getLogger(__name__)

T = TypeVar("T")
FILE = "memory.json"


class MemoryLimit:
    """The token budget of a run, halved whenever a micro-batch did not fit.

    Args:
        configured: ``data.max_tokens_per_micro_batch``.
        packed: whether the model in question, policy or critic, leaves padding out.
    """

    def __init__(self, configured: int, packed: bool = False) -> None:
        self.configured, self.packed, self.sharded = configured, packed, False
        self.budget = configured
        self.folder: Path | None = None
        """The run folder, where the budget is remembered for a resume."""

    def resume(self, folder: Path) -> None:
        """Take the budget that an earlier part of this run came down to, unless the config has changed since."""
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except ValueError:
            log.warning("%s cannot be read: the token budget is the configured one again", folder / FILE)
            return
        if found.get("configured") == self.configured:
            self.budget = int(found["budget"])
            log.info("token budget of a micro-batch: %d instead of %d (%s)", self.budget, self.configured, found["why"])

    def fit(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Micro-batches within the budget; they are so already unless it has become smaller since they were cut."""
        if self.budget >= self.configured:
            return list(parts)
        return [piece for part in parts for piece in cut_rows(part, self.budget, self.packed)]

    def retry_smaller(self, work: Callable[[list[MicroBatch]], T], parts: Sequence[MicroBatch], update: str) -> T:
        """Do the work of an update; where it does not fit, do all of it again with half the budget.

        On several ranks none can repeat alone: all stop, and a resume takes half the budget.

        Args:
            work: clears gradients and runs every micro-batch.
            parts: this rank's micro-batches.
            update: what is done, for the message: "update 3".

        Raises:
            InfrastructureError: several ranks, or a single row does not fit.
        """
        pieces = self.fit(parts)
        while True:
            failed, result = "", None
            try:
                result = work(pieces)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = first_line(error)[:200]
            if failed and self.sharded:  # the others wait in a gather: no agreement is possible any more
                self._smaller(pieces, parts, update, failed)
            # outside the except clause: the exception holds the tensors of the attempt
            if not largest(int(bool(failed)), parts[0].input_ids.device):
                assert result is not None
                return result
            pieces = self._smaller(pieces, parts, update, failed)

    def _smaller(
        self, pieces: Sequence[MicroBatch], parts: Sequence[MicroBatch], update: str, why: str
    ) -> list[MicroBatch]:
        biggest = max(pieces, key=lambda part: _cost(part, self.packed))
        rows, tokens = int(biggest.response_mask.shape[0]), _cost(biggest, self.packed)
        rank, world = rank_and_world()
        what = f"out of memory in {update}: a micro-batch of {rows} rows and {tokens} tokens does not fit ({why})"
        if rows == 1 and world == 1:
            raise InfrastructureError(
                f"{what}\n  fix: lower data.max_response_tokens or data.max_prompt_tokens, or set "
                f"model.gradient_checkpointing: true"
            )
        before = self.budget
        self.budget = max(1, min(self.budget, tokens) // 2)
        if world > 1:
            report = f"rank {rank}: {what}"
            if not self.sharded:
                report = next(r for r in all_gather_objects(report if why else "") if r)
                self.budget = min(all_gather_objects(self.budget if why else before))
            self._remember(report)
            raise InfrastructureError(
                f"{report}\n  fix: resume with --ckpt_path last, which takes {self.budget} tokens instead of "
                f"{before}, or set data.max_tokens_per_micro_batch: {self.budget}"
            )
        self._remember(what)
        log.warning("%s; again with a token budget of %d instead of %d", what, self.budget, before)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return self.fit(parts)

    def _remember(self, why: str) -> None:
        if self.folder is not None and (self.sharded or rank_and_world()[0] == 0):
            content = {"configured": self.configured, "budget": self.budget, "why": why}
            write_text(self.folder / FILE, json.dumps(content, indent=1) + "\n")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine had no memory left."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
    )


def _cost(part: MicroBatch, packed: bool) -> int:
    """Tokens that go through the model: packed, each distinct prompt once; else rows x the longest."""
    if not packed or part.prompt_index is None:
        return int(part.lengths.max()) * int(part.input_ids.shape[0])
    prompts = {int(i): int(n) for i, n in zip(part.prompt_index, part.prompt_lengths, strict=True)}
    return sum(prompts.values()) + int(part.response_lengths.sum())


def cut_rows(part: MicroBatch, budget: int, packed: bool) -> list[MicroBatch]:
    """The rows of a micro-batch in pieces within a budget; a single row is never cut."""
    count = int(part.input_ids.shape[0])
    if count == 1 or _cost(part, packed) <= budget:
        return [part]
    middle = count // 2
    halves = (_rows(part, slice(0, middle)), _rows(part, slice(middle, count)))
    return [piece for half in halves for piece in cut_rows(half, budget, packed)]


def _rows(part: MicroBatch, rows: slice) -> MicroBatch:
    """Some rows, without the columns that none of them fills."""
    width, steps = int(part.lengths[rows].max()), int(part.response_lengths[rows].max())
    taken: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        if isinstance(value := getattr(part, f.name), Tensor):
            columns = width if f.name == "input_ids" else steps
            of_tokens = value.dim() == 2 and f.name != "sources"
            taken[f.name] = value[rows, :columns] if of_tokens else value[rows]
    if part.media is not None:
        taken["media"] = part.media[rows]
    return dataclasses.replace(part, **taken, host=None)
