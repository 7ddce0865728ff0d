"""Numerical noise of ratios that should be 1, checked before the first rollout."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

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
    sides = [getattr(objective, name, None) for name in ("clip_low", "clip_high")]
    ranges = [float(side) for side in sides if side is not None and side > 0]
    return min(ranges) if ranges else None


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
    """Return the mean over sequences of |mean log-ratio| between log-probabilities [N, T], in nats."""
    difference = torch.where(batch.response_mask, first.double() - second.double(), 0.0)
    lengths = batch.response_mask.sum(-1).clamp(min=1)
    log_ratios = difference.sum(-1) / lengths
    return float(log_ratios.abs().mean())


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
    clip_range = band(objective)
    if clip_range is None:
        return
    tolerance = 0.1 * clip_range
    name = type(objective).__name__
    with context():
        exact = compute_dtype(policy) in (torch.float32, torch.float64)
        with torch.no_grad():
            logprobs = policy(batch)[0]
        noise = _gap(batch, logprobs, _as_in_an_update(policy, batch))
        if not noise <= tolerance:  # NaN is noise, too
            _refuse_noise("of one micro-batch", noise, name, clip_range)
        cut_noise = _gap(batch, logprobs, _in_pieces(policy, batch, batch.input_ids.numel() // 2))
    evaluations = "of one micro-batch and of the same rows cut into smaller ones"
    if not exact and cut_noise > tolerance:
        log.info(
            "log-probabilities %s differ by %.1e nats on average over a sequence, and %s clips at %g: old ones are "
            "computed on the micro-batches of the update, so ratios are 1 as long as these fit into memory",
            evaluations, cut_noise, name, clip_range,
        )  # fmt: skip
    elif not cut_noise <= tolerance:
        _refuse_noise(evaluations, cut_noise, name, clip_range)


def _refuse_noise(evaluations: str, noise: float, objective: str, clip_range: float) -> NoReturn:
    raise UserError(
        "trainer.precision",
        f"the same weights give log-probabilities {evaluations} that differ by {noise:.1e} nats on average over a "
        f"sequence, and {objective} clips at {clip_range:g}: it would clip noise",
        fix="use 32-true, a deterministic attn_implementation, or an objective with a wider clip range",
    )


def _check_equal(policy: Policy, batch: MicroBatch, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Refuse a batch-invariant policy if gradients, single rows or the other layout move any log-probability."""
    packed = policy.packed
    with context(), torch.no_grad():
        logprobs = policy(batch)[0]
        evaluations = {"with gradients": _as_in_an_update(policy, batch), "row by row": _in_pieces(policy, batch, 1)}
        try:
            policy.packed = not packed
            evaluations["padded" if packed else "packed"] = policy(batch)[0]
        finally:
            policy.packed = packed
    for method, other_logprobs in evaluations.items():
        differing = int((other_logprobs != logprobs).sum())
        if differing:
            raise UserError(
                "model.batch_invariant",
                f"is true, but {differing} of {int(batch.response_mask.sum())} log-probabilities of a probe have other "
                f"bits if they are computed {method}: kernels of this machine depend on the batch in an unknown way",
                fix="use batch_invariant: false, and report this with the machine's processor and number of threads",
            )


def _as_in_an_update(policy: Policy, batch: MicroBatch) -> Tensor:
    """Return [N, T] computed with gradients; without if sharded, as no backward pass would free the gathered shards."""
    with torch.set_grad_enabled(not is_sharded(policy)):
        return policy(batch)[0].detach()


@torch.no_grad()
def _in_pieces(policy: Policy, batch: MicroBatch, budget: int) -> Tensor:
    """Return [N, T] of the rows computed in micro-batches of ``budget`` tokens."""
    width = batch.response_mask.shape[1]
    logprobs = []
    for part in cut_rows(batch, budget, policy.packed):
        part_logprobs = policy(part)[0]
        logprobs.append(nn.functional.pad(part_logprobs, (0, width - part_logprobs.shape[1])))
    return torch.cat(logprobs)
