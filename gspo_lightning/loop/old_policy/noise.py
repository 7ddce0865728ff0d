"""Numerical noise of ratios that should be 1, checked before the first rollout."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import is_sharded

log = logging.getLogger(__name__)


def band(objective: Objective) -> float | None:
    """Return the smaller side of an objective's clip range; None if it has none."""
    sides = (getattr(objective, name, None) for name in ("clip_low", "clip_high"))
    found = [float(side) for side in sides if side is not None and side > 0]
    return min(found) if found else None


@torch.no_grad()
def ratio_noise(
    policy: Policy,
    batch: MicroBatch,
    other: Callable[[], Tensor] | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Return the mean over sequences of |mean log-ratio| between two evaluations of the same weights, in nats.

    Args:
        policy: evaluated once or twice.
        batch: N rows on its device.
        other: the second evaluation, [N, T]; by default the policy again.
        context: of the forward passes (autocast).
    """
    with context():
        first = policy(batch)[0]
        second = other() if other is not None else policy(batch)[0]
    return _gap(batch, first, second)


def _gap(batch: MicroBatch, first: Tensor, second: Tensor) -> float:
    first, second = first.double(), second.double()
    gap = torch.where(batch.response_mask, first - second, 0.0).sum(-1) / batch.response_mask.sum(-1).clamp(min=1)
    return float(gap.abs().mean())


def check_ratio_noise(
    policy: Policy, batch: MicroBatch, objective: Objective, context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Refuse a precision whose noise exceeds a tenth of the objective's clip range: the same weights must give ratio 1.

    Compares the forward pass that computes old log-probabilities with that of an update (with gradients, so with
    the kernels of training), then the whole micro-batch with the same rows cut into smaller ones.

    Args:
        policy: as it will be trained, on its device.
        batch: rows as long as a run may have, on that device.
        objective: has the clip range.
        context: of the forward passes (autocast).

    Raises:
        UserError: the first two differ by more, so that clipping would act on noise; or, in float32, the cuts do. In
            lower precision another cut rounds differently, which is only logged: an update sees the cut that its old
            log-probabilities come from, unless memory runs out in between.
    """
    if policy.batch_invariant:
        _check_equal(policy, batch, context)
    if (limit := band(objective)) is None:
        return
    name, cut = type(objective).__name__, "of one micro-batch"
    with context():
        exact = compute_dtype(policy) in (torch.float32, torch.float64)
        with torch.no_grad():
            first = policy(batch)[0]
        noise = _gap(batch, first, _as_in_an_update(policy, batch))
        if same := noise <= 0.1 * limit:
            noise = _gap(batch, first, _in_pieces(policy, batch, batch.input_ids.numel() // 2))
    if same:
        cut = "of one micro-batch and of the same rows cut into smaller ones"
        if not exact and noise > 0.1 * limit:
            log.info(
                "log-probabilities %s differ by %.1e nats on average over a sequence, and %s clips at %g: old ones are "
                "computed on the micro-batches of the update, so ratios are 1 as long as these fit into memory",
                cut, noise, name, limit,
            )  # fmt: skip
            return
    if not noise <= 0.1 * limit:
        raise UserError(
            "trainer.precision",
            f"the same weights give log-probabilities {cut} that differ by {noise:.1e} nats on average over a "
            f"sequence, and {name} clips at {limit:g}: it would clip noise",
            fix="use 32-true, a deterministic attn_implementation, or an objective with a wider clip range",
        )


def _check_equal(policy: Policy, batch: MicroBatch, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Refuse a batch-invariant policy if gradients, single rows or the other layout move any log-probability."""
    packed = policy.packed
    with context(), torch.no_grad():
        first = policy(batch)[0]
        found = {"with gradients": _as_in_an_update(policy, batch), "row by row": _in_pieces(policy, batch, 1)}
        try:
            policy.packed = not packed
            found["padded" if packed else "packed"] = policy(batch)[0]
        finally:
            policy.packed = packed
    for how, other in found.items():
        if count := int((other != first).sum()):
            raise UserError(
                "model.batch_invariant",
                f"is true, but {count} of {int(batch.response_mask.sum())} log-probabilities of a probe have other "
                f"bits if they are computed {how}: kernels of this machine depend on the batch in an unknown way",
                fix="use batch_invariant: false, and report this with the machine's processor and number of threads",
            )


def _as_in_an_update(policy: Policy, batch: MicroBatch) -> Tensor:
    """Return [N, T] computed with gradients; without if sharded, as no backward pass would free the gathered shards."""
    with torch.set_grad_enabled(not is_sharded(policy)):
        return policy(batch)[0].detach()


@torch.no_grad()
def _in_pieces(policy: Policy, batch: MicroBatch, budget: int) -> Tensor:
    """Return [N, T] of the rows computed in micro-batches of ``budget`` tokens."""
    parts = cut_rows(batch, budget, policy.packed)
    width = batch.response_mask.shape[1]
    found = [policy(part)[0] for part in parts]
    return torch.cat([nn.functional.pad(x, (0, width - x.shape[1])) for x in found])
