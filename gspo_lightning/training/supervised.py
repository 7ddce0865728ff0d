"""Supervised training on demonstrations, and its loss curve."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from gspo_lightning.core.host_memory import keep_freed_memory
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.data.prompts.taught import Taught
from gspo_lightning.policy.packing.rows import common_prefix
from gspo_lightning.policy.policy import Policy
from gspo_lightning.resume import uninterrupted
from gspo_lightning.training.saved_progress import SavedProgress

log = logging.getLogger(__name__)

CURVE = "cold_start.jsonl"
"""File with the loss curve of a cold start, in the folder of the resulting model."""
POINTS = 200
"""Largest number of points of a curve."""
_EVALUATIONS = 20
"""Largest number of measurements of the held-out loss."""
_TOKENS = 16384
"""Tokens of one forward pass, with the padding of a padded layout; changes memory, never the loss."""


@dataclass(frozen=True, slots=True)
class Point:
    """Losses in nats per taught token: the mean over the steps since the last point, and the held-out one after it."""

    step: int
    """Steps made so far, from 1."""
    loss: float
    held_out_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Supervised:
    """Settings of supervised training."""

    steps: int
    gradient_clip: float
    learning_rate: Callable[[int], float]
    """Step, from 0 -> learning rate of AdamW."""
    batch: Callable[[int], Sequence[int]]
    """Step, from 0 -> indices of the rows of its batch."""


def learn(
    policy: Policy,
    rows: Sequence[Taught],
    held_out: Sequence[Taught],
    settings: Supervised,
    saved: SavedProgress | None = None,
) -> list[Point]:
    """Train a policy in place; return its loss curve.

    Args:
        policy: the policy; in training mode afterwards.
        rows: rows to learn.
        held_out: rows that are only measured; may be empty.
        settings: settings of the steps.
        saved: keeps the state now and then and at an interruption, and gives that of a killed process; None starts from
            the beginning.
    """
    keep_freed_memory(policy.device)
    training = _Training(policy, settings)
    state = None if saved is None else saved.load()
    if state is not None:
        training.load_state_dict(state)
    policy.train()
    wait_s = 0.2 if sys.stderr.isatty() else 5.0  # into a file, seldom
    steps = settings.steps
    try:
        with tqdm(total=steps, initial=training.done, desc="cold start", unit="step", mininterval=wait_s) as bar:
            while True:
                if training.note(held_out):
                    bar.set_postfix_str(_losses(training.curve), refresh=False)
                if training.done == steps:
                    break
                if saved is not None and training.done:
                    saved.save_if_due(training.done, training.state_dict)
                training.step([rows[number] for number in settings.batch(training.done)])
                bar.update()
    except (KeyboardInterrupt, SystemExit):  # SystemExit: SIGTERM
        if saved is not None and training.done:
            log.warning("cold start: interrupted after step %d; the same command goes on from there", training.done)
            saved.save(training.done, training.state_dict)
        raise
    return training.curve


class _Training:
    """Weights, optimizer and curve of supervised training.

    Args:
        policy: trained in place.
        settings: settings of the steps.
    """

    def __init__(self, policy: Policy, settings: Supervised) -> None:
        self.policy = policy
        self.settings = settings
        self.done = 0
        """Steps made so far."""
        self.trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=settings.learning_rate(0), betas=(0.9, 0.95), weight_decay=0.0
        )
        self.curve: list[Point] = []
        self._losses: list[Tensor] = []

    def step(self, rows: Sequence[Taught]) -> None:
        """Make an optimizer step on the mean loss of a batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(self.done)
        self.optimizer.zero_grad(set_to_none=True)
        loss = _backward(self.policy, rows)
        with uninterrupted():  # signals wait until weights, losses and counter fit together
            torch.nn.utils.clip_grad_norm_(self.trained.values(), self.settings.gradient_clip)
            self.optimizer.step()
            self._losses.append(loss)
            self.done += 1

    def note(self, held_out: Sequence[Taught]) -> bool:
        """Add a point to the curve if one is due and not there; return True if it was added."""
        steps = self.settings.steps
        is_last = self.done == steps
        measures = bool(held_out) and (is_last or self.done % max(1, steps // _EVALUATIONS) == 0)
        due = measures or is_last or self.done % max(1, steps // POINTS) == 0
        if not due or not self._losses:
            return False
        loss = float(torch.stack(self._losses).mean())
        held_out_loss = measure(self.policy, held_out) if measures else None
        self.curve.append(Point(self.done, loss, held_out_loss))
        self._losses = []
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return all that later steps depend on; batches and learning rates are functions of the step."""
        return {
            "done": self.done,
            "weights": {name: weight.detach() for name, weight in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "curve": [astuple(point) for point in self.curve],
            "losses": self._losses,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self.done = int(state["done"])
        self.curve = [Point(*point) for point in state["curve"]]
        for name, weight in self.trained.items():
            weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self._losses = [loss.to(self.policy.device) for loss in state["losses"]]


def _losses(curve: Sequence[Point]) -> str:
    """Return the newest losses of a curve as text; the held-out loss is not measured at every point."""
    text = f"loss={curve[-1].loss:.3f}"
    held_out_losses = [point.held_out_loss for point in curve if point.held_out_loss is not None]
    return f"{text}, held-out={held_out_losses[-1]:.3f}" if held_out_losses else text


def _backward(policy: Policy, rows: Sequence[Taught]) -> Tensor:
    """Accumulate gradients of the mean loss over the taught tokens of all rows, piece by piece; return that loss."""
    count = sum(sum(row.mask) for row in rows)
    total = torch.zeros(())
    for piece in _pieces(rows, packed=policy.packed):
        loss = _loss(policy, piece) / count
        loss.backward()
        total = total.to(loss.device) + loss.detach()
    return total


@torch.no_grad()
def measure(policy: Policy, rows: Sequence[Taught]) -> float:
    """Return the mean loss over the taught tokens of all rows, in nats per token."""
    policy.eval()
    total = sum(float(_loss(policy, piece)) for piece in _pieces(rows, packed=policy.packed))
    policy.train()
    return total / sum(sum(row.mask) for row in rows)


def _loss(policy: Policy, rows: Sequence[Taught]) -> Tensor:
    batch = _collate(rows).to(policy.device)
    logprobs, _ = policy(batch)
    return -torch.where(batch.response_mask, logprobs, 0.0).sum()


def _pieces(rows: Sequence[Taught], *, packed: bool) -> Iterator[list[Taught]]:
    """Yield rows in order, in pieces of at most :data:`_TOKENS` tokens, or of one row."""
    piece: list[Taught] = []
    longest = 0
    total = 0
    for row in rows:
        length = len(row.prompt) + len(row.response)
        size = total + length if packed else max(longest, length) * (len(piece) + 1)
        if piece and size > _TOKENS:
            yield piece
            piece = []
            longest = 0
            total = 0
        piece.append(row)
        longest = max(longest, length)
        total += length
    if piece:
        yield piece


def _collate(rows: Sequence[Taught]) -> MicroBatch:
    """Return a micro-batch of rows [N, L] whose response mask [N, T] is that of the taught tokens."""
    prompt_lengths = torch.tensor([len(row.prompt) for row in rows])
    response_lengths = torch.tensor([len(row.response) for row in rows])
    ids = torch.zeros(len(rows), int((prompt_lengths + response_lengths).max()), dtype=torch.int64)
    mask = torch.zeros(len(rows), int(response_lengths.max()), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.prompt) + len(row.response)] = torch.tensor([*row.prompt, *row.response])
        mask[i, : len(row.response)] = torch.tensor(row.mask)
    media = tuple(row.media for row in rows) if any(row.media for row in rows) else None
    batch = MicroBatch(ids, prompt_lengths, response_lengths, mask, torch.zeros(len(rows)), media=media)
    if media is not None:  # placeholders of different pictures are the same tokens: equal ids are not equal prompts
        return batch
    # equal prompts share one computation of their prefix: all rows point to the last row with that prompt
    contexts = {tuple(row.prompt): number for number, row in enumerate(rows)}
    index = torch.tensor([contexts[tuple(row.prompt)] for row in rows])
    return replace(batch, prompt_index=index, common_prefix=common_prefix(contexts.keys()))


def write_curve(curve: Sequence[Point], folder: Path) -> None:
    """Write one JSON object per line."""
    rows = [{"step": p.step, "loss": p.loss, "held_out_loss": p.held_out_loss} for p in curve]
    (folder / CURVE).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")


def read_curve(folder: Path) -> list[Point]:
    """Read the loss curve of a cold start; return an empty list if older code made it."""
    file = folder / CURVE
    if not file.is_file():
        return []
    return [Point(**json.loads(line)) for line in file.read_text("ascii").splitlines()]
