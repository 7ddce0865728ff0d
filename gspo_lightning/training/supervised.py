"""Supervised training on demonstrations, and its loss curve."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from tqdm.auto import tqdm

from gspo_lightning.errors import InfrastructureError
from gspo_lightning.packing.rows import common_prefix
from gspo_lightning.policy.policy import Policy
from gspo_lightning.prompts.taught import Taught
from gspo_lightning.resume import atomic_file, uninterrupted
from gspo_lightning.resume.reading import read_tensors
from gspo_lightning.types import MicroBatch

log = logging.getLogger(__name__)

CURVE = "cold_start.jsonl"
"""File with the loss curve of a cold start, in the folder of the resulting model."""
_POINTS, _EVALUATIONS = 200, 20
"""Largest number of points of a curve, and of measurements of the held-out loss."""
_TOKENS = 16384
"""Tokens of one forward pass, padding included; changes memory, never the loss."""


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
    how: Supervised,
    state: Path | None = None,
) -> list[Point]:
    """Train a policy in place; return its loss curve.

    Args:
        policy: the policy; in training mode afterwards.
        rows: rows to learn.
        held_out: rows that are only measured; may be empty.
        how: settings of the steps.
        state: file that an interruption by a signal is saved to, and that an interrupted training goes on from, with
            the same result; None saves nothing.
    """
    run = _Training.of(policy, how, state)
    policy.train()
    wait = 0.2 if sys.stderr.isatty() else 5.0
    try:
        with tqdm(total=how.steps, initial=run.done, desc="cold start", unit="step", mininterval=wait) as bar:
            for step in range(run.done, how.steps):
                run.optimizer.zero_grad(set_to_none=True)
                loss = _backward(policy, [rows[number] for number in how.batch(step)])
                run.step(loss, how)
                bar.update()
                if run.note(held_out, how):
                    bar.set_postfix_str(_shown(run.curve), refresh=False)
            if not run.curve or run.curve[-1].step < how.steps:  # interrupted after the last step
                run.note(held_out, how)
    except (KeyboardInterrupt, SystemExit):  # SystemExit: SIGTERM
        run.save(state)
        raise
    return run.curve


@dataclass
class _Training:
    """Supervised training between two steps."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    done: int = 0
    """Steps made."""
    curve: list[Point] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    """Losses since the last point of the curve."""
    whole: bool = True
    """False while a step changes weights."""

    @classmethod
    def of(cls, policy: Policy, how: Supervised, state: Path | None) -> _Training:
        """Return the beginning of a training, or what was saved in ``state``."""
        trained = [p for p in policy.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=how.learning_rate(0), betas=(0.9, 0.95), weight_decay=0.0)
        if state is None or not state.is_file():
            return cls(policy, optimizer)
        saved = read_tensors(state, "the interrupted cold start", fix=f"delete {state}")
        policy.load_state_dict(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])
        log.info("cold start: goes on after step %d of %d", saved["done"], how.steps)
        losses = [loss.to(policy.device) for loss in saved["losses"]]
        return cls(policy, optimizer, saved["done"], [Point(*point) for point in saved["curve"]], losses)

    def step(self, loss: Tensor, how: Supervised) -> None:
        """Make an optimizer step; signals wait for its end."""
        with uninterrupted():
            self.whole = False
            for group in self.optimizer.param_groups:
                group["lr"] = how.learning_rate(self.done)
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), how.gradient_clip)
            self.optimizer.step()
            self.losses.append(loss)
            self.done += 1
            self.whole = True

    def note(self, held_out: Sequence[Taught], how: Supervised) -> bool:
        """Add a point to the curve if it is due; return True if it was."""
        per_point, per_evaluation = max(1, how.steps // _POINTS), max(1, how.steps // _EVALUATIONS)
        last = self.done == how.steps
        measures = bool(held_out) and (self.done % per_evaluation == 0 or last)
        if not (measures or last or self.done % per_point == 0):
            return False
        measured = measure(self.policy, held_out) if measures else None
        self.curve.append(Point(self.done, float(torch.stack(self.losses).mean()), measured))
        self.losses = []
        return True

    def save(self, state: Path | None) -> None:
        """Save an interrupted training, if it has made whole steps and there is a file for it."""
        if state is None or not self.whole or self.done == 0:
            return
        log.warning("cold start: interrupted after step %d; the same command goes on from there", self.done)
        saved = {
            "done": self.done, "curve": [dataclasses.astuple(point) for point in self.curve], "losses": self.losses,
            "weights": self.policy.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        try:
            with atomic_file(state) as file:
                torch.save(saved, cast(Any, file))  # it writes, which is all that torch needs
        except OSError as error:
            what = f"the interrupted cold start {state} cannot be written: {error.strerror or error}"
            raise InfrastructureError(f"{what}; the next run makes it from the start") from error


def _shown(curve: Sequence[Point]) -> str:
    held_out = next((point.held_out_loss for point in reversed(curve) if point.held_out_loss is not None), None)
    return f"loss={curve[-1].loss:.3f}" + ("" if held_out is None else f", held-out={held_out:.3f}")


def _backward(policy: Policy, rows: Sequence[Taught]) -> Tensor:
    """Accumulate gradients of the mean loss over the taught tokens of all rows, piece by piece; return that loss."""
    count, total = sum(sum(row.mask) for row in rows), torch.zeros(())
    for piece in _pieces(rows):
        loss = _loss(policy, piece) / count
        loss.backward()
        total = total.to(loss.device) + loss.detach()
    return total


@torch.no_grad()
def measure(policy: Policy, rows: Sequence[Taught]) -> float:
    """Return the mean loss over the taught tokens of all rows, in nats per token."""
    policy.eval()
    total = sum(float(_loss(policy, piece)) for piece in _pieces(rows))
    policy.train()
    return total / sum(sum(row.mask) for row in rows)


def _loss(policy: Policy, rows: Sequence[Taught]) -> Tensor:
    batch = _collate(rows).to(policy.device)
    logprobs, _ = policy(batch)
    return -torch.where(batch.response_mask, logprobs, 0.0).sum()


def _pieces(rows: Sequence[Taught]) -> Iterator[list[Taught]]:
    """Yield rows in order, in pieces of at most :data:`_TOKENS` tokens, or of one row."""
    piece: list[Taught] = []
    longest = 0
    for row in rows:
        length = len(row.prompt) + len(row.response)
        if piece and max(longest, length) * (len(piece) + 1) > _TOKENS:
            yield piece
            piece, longest = [], 0
        piece.append(row)
        longest = max(longest, length)
    if piece:
        yield piece


def _collate(rows: Sequence[Taught]) -> MicroBatch:
    prompts = torch.tensor([len(row.prompt) for row in rows])
    responses = torch.tensor([len(row.response) for row in rows])
    ids = torch.zeros(len(rows), int((prompts + responses).max()), dtype=torch.int64)
    mask = torch.zeros(len(rows), int(responses.max()), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.prompt) + len(row.response)] = torch.tensor([*row.prompt, *row.response])
        mask[i, : len(row.response)] = torch.tensor(row.mask)
    media = tuple(row.media for row in rows) if any(row.media for row in rows) else None
    batch = MicroBatch(ids, prompts, responses, mask, torch.zeros(len(rows)), media=media)
    if media is not None:
        return batch
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
    return [Point(**json.loads(line)) for line in file.read_text("ascii").splitlines()] if file.is_file() else []
