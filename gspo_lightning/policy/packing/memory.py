"""Out of memory in a micro-batch: repeat the mini-batch in smaller pieces and remember the smaller budget."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from gspo_lightning.core.distributed import all_gather_objects, largest, rank_and_world
from gspo_lightning.core.errors import InfrastructureError, first_line
from gspo_lightning.core.parsing import load_json, whole_number
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.packing.batches import select_rows
from gspo_lightning.resume import write_text

log = logging.getLogger(__name__)

T = TypeVar("T")
FILE = "memory.json"
ALLOCATING = threading.RLock()
"""Held while an update allocates, and while decode steps are recorded: during a recording PyTorch's allocator cannot
give cached blocks back to the device, so an update in another thread would run out of memory that there is."""


def empty_cache() -> None:
    """Give cached blocks back to a CUDA device. While another thread records, PyTorch raises, so this waits for it."""
    if torch.cuda.is_available():
        with ALLOCATING:
            torch.cuda.empty_cache()


class MemoryLimit:
    """Token budget of a run, halved whenever a micro-batch does not fit.

    Args:
        configured: ``data.max_tokens_per_micro_batch``.
        packed: True if the model in question, policy or critic, leaves padding out.
    """

    def __init__(self, configured: int, packed: bool = False) -> None:
        self.configured = configured
        self.packed = packed
        self.sharded = False
        self.budget = configured
        self.folder: Path | None = None
        """Run folder, which keeps the budget for a resume."""
        self.release: Callable[[], bool] | None = None
        """Frees memory that is only kept for speed; True if there was some. Tried before the budget is halved."""

    def about(self, packed: bool, sharded: bool, release: Callable[[], bool]) -> None:
        """Learn about the policy: whether it is packed and sharded, and what frees memory that it keeps for speed."""
        self.packed = packed
        self.sharded = sharded
        self.release = release

    def resume(self, folder: Path) -> None:
        """Restore the budget that an earlier part of this run came down to, unless the config has changed since."""
        try:
            content = load_json((folder / FILE).read_text(encoding="utf-8"))
            configured = whole_number(content["configured"], "configured")
            budget = whole_number(content["budget"], "budget")
            if not 1 <= budget <= configured:
                raise ValueError(f"budget is {budget}, but must be 1 to {configured}")
            reason = str(content["why"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError) as error:
            problem = f"cannot be read ({first_line(error)})" if isinstance(error, ValueError) else "is damaged"
            log.warning("%s %s: the token budget is the configured one again", folder / FILE, problem)
            return
        if configured == self.configured:
            self.budget = budget
            log.info("token budget of a micro-batch: %d instead of %d (%s)", budget, configured, reason)

    def fit(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return micro-batches within the budget; cuts only if the budget has shrunk since they were made."""
        if self.budget >= self.configured:
            return list(parts)
        return [piece for part in parts for piece in cut_rows(part, self.budget, self.packed)]

    def retry_smaller(self, work: Callable[[list[MicroBatch]], T], parts: Sequence[MicroBatch], update: str) -> T:
        """Run one update; if it does not fit, repeat all of it with half the budget.

        On several ranks none can repeat alone: all stop, and a resume takes half the budget.

        Args:
            work: clears gradients and runs every micro-batch.
            parts: this rank's micro-batches.
            update: name of the update in messages: "update 3".

        Raises:
            InfrastructureError: out of memory on one of several ranks, or with a single row.
        """
        pieces = self.fit(parts)
        while True:
            failed = ""
            result = None
            try:
                with ALLOCATING:
                    result = work(pieces)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = first_line(error)[:200]
            if failed and rank_and_world()[1] == 1 and self._relieved():
                continue
            if failed and self.sharded:  # other ranks wait in a gather, so ranks can no longer agree
                self._smaller(pieces, parts, update, failed)
            # outside the except clause: the exception holds the tensors of the attempt
            if not largest(int(bool(failed)), parts[0].input_ids.device):
                assert result is not None
                return result
            pieces = self._smaller(pieces, parts, update, failed)

    def _relieved(self) -> bool:
        """Free what is kept for speed; True if that was anything."""
        if self.release is None or not self.release():
            return False
        log.info("freed what sampling keeps between rollouts, since an update is out of memory")
        empty_cache()
        return True

    def _smaller(
        self, pieces: Sequence[MicroBatch], parts: Sequence[MicroBatch], update: str, why: str
    ) -> list[MicroBatch]:
        largest_piece = max(pieces, key=lambda part: _cost(part, self.packed))
        rows = int(largest_piece.response_mask.shape[0])
        tokens = _cost(largest_piece, self.packed)
        rank, world = rank_and_world()
        problem = f"out of memory in {update}: a micro-batch of {rows} rows and {tokens} tokens does not fit ({why})"
        if rows == 1 and world == 1:
            raise InfrastructureError(
                f"{problem}\n  fix: lower data.max_response_tokens or data.max_prompt_tokens, or set "
                f"model.gradient_checkpointing: true"
            )
        before = self.budget
        self.budget = max(1, min(self.budget, tokens) // 2)
        if world > 1:
            report = f"rank {rank}: {problem}"
            if not self.sharded:  # the ranks wait for each other: the first that failed is named on all
                reports = all_gather_objects(report if why else "")
                report = next(rank_report for rank_report in reports if rank_report)
                self.budget = min(all_gather_objects(self.budget if why else before))
            self._remember(report)
            raise InfrastructureError(
                f"{report}\n  fix: resume with --ckpt_path last, which takes {self.budget} tokens instead of "
                f"{before}, or set data.max_tokens_per_micro_batch: {self.budget}"
            )
        self._remember(problem)
        log.warning("%s; again with a token budget of %d instead of %d", problem, self.budget, before)
        empty_cache()
        return self.fit(parts)

    def _remember(self, why: str) -> None:
        if self.folder is not None and (self.sharded or rank_and_world()[0] == 0):
            content = {"configured": self.configured, "budget": self.budget, "why": why}
            write_text(self.folder / FILE, json.dumps(content, indent=1) + "\n")


def is_out_of_memory(error: BaseException) -> bool:
    """True if a device or the machine ran out of memory."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
    )


def _cost(part: MicroBatch, packed: bool) -> int:
    """Return the tokens that go through the model; packed: each distinct prompt once, and what all share only once.

    Otherwise rows x the longest row.
    """
    if not packed or part.prompt_index is None:
        return int(part.lengths.max()) * int(part.input_ids.shape[0])
    prompts = {int(i): int(n) for i, n in zip(part.prompt_index, part.prompt_lengths, strict=True)}
    repeated = part.common_prefix * (len(prompts) - 1)
    return sum(prompts.values()) - repeated + int(part.response_lengths.sum())


def cut_rows(part: MicroBatch, budget: int, packed: bool) -> list[MicroBatch]:
    """Cut a micro-batch by rows into pieces within a budget; a single row is never cut."""
    count = int(part.input_ids.shape[0])
    if count == 1 or _cost(part, packed) <= budget:
        return [part]
    middle = count // 2
    halves = (select_rows(part, range(middle)), select_rows(part, range(middle, count)))
    return [piece for half in halves for piece in cut_rows(half, budget, packed)]
