"""Non-finite values: stop before the optimizer, dump them for inspection, or skip the update on request."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gspo_lightning.core.distributed import largest, local
from gspo_lightning.core.errors import NonFiniteError, UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import is_sharded, total_norm

OnNonFinite = Literal["stop", "skip"]

log = logging.getLogger(__name__)


class NonFiniteGuard:
    """Handling of updates with a NaN or infinity.

    Args:
        choice: ``stop`` the run, or ``skip`` the mini-batch.
        max_skips: number of mini-batches a run may skip; the next one stops it.
    """

    def __init__(self, choice: OnNonFinite, max_skips: int) -> None:
        if max_skips < 0:
            raise UserError("model.max_skips", f"is {max_skips}; it must be 0 or above")
        self.choice = choice
        self.max_skips = max_skips
        self.skipped = 0
        self._bad: list[Tensor] = []

    def watch(self, policy: nn.Module, arguments: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Check log-probabilities in a forward hook: log-ratios are bounded, so the loss may hide an infinite one."""
        if torch.is_grad_enabled():
            batch = arguments[0]
            new = output[0].detach()
            old = batch.behaviour_logprobs if batch.old_from_source else batch.old_logprobs
            for logprobs in (new, old):
                if logprobs is not None:
                    self._bad.append((~torch.isfinite(logprobs) & batch.response_mask).sum())

    def bad_logprobs(self) -> float:
        """Return how many log-probabilities of this update, new and old, were not finite."""
        count = float(torch.stack(self._bad).sum()) if self._bad else 0.0
        self._bad = []
        return count

    def skips(self, values: Mapping[str, float], update: int, device: torch.device, dump: Callable[[], Path]) -> bool:
        """True if this update is left out; False if it is finite. The same answer on every rank.

        Args:
            values: loss, gradient norm ...
            update: its number, from 1.
            device: for the collective.
            dump: writes the mini-batch and returns its path.

        Raises:
            NonFiniteError: it is not finite, and must not or can no longer be skipped.
        """
        bad = self.bad_logprobs()
        finite = bad == 0 and all(math.isfinite(value) for value in values.values())
        if not largest(int(not finite), device):
            return False
        path = dump()
        listed = ", ".join(f"{name} {value:g}" for name, value in values.items())
        if bad:
            listed += f", {bad:g} log-probabilities"
        problem = (
            f"update {update} is not finite ({listed}); the weights were not changed. Replay it: gspo replay {path}"
        )
        if self.choice == "skip" and self.skipped < self.max_skips:
            self.skipped += 1
            log.warning("skipped %d of at most %d: the gradient of %s", self.skipped, self.max_skips, problem)
            return True
        after = f" ({self.skipped} were skipped before)" if self.skipped else ""
        raise NonFiniteError(
            f"the gradient of {problem}{after}\n"
            f"  fix: lower the learning rate, or skip such mini-batches with model.on_nonfinite: skip "
            f"(at most model.max_skips of them)"
        )


def finite_by_norms(measured: Mapping[str, float]) -> bool:
    """True if norms of all parts of the trained weights were measured and are finite: then so are the weights.

    Args:
        measured: tag -> value; the norms are under ``weights/...``.

    >>> finite_by_norms({"weights/mlp": 3.0}), finite_by_norms({"weights/mlp": math.inf}), finite_by_norms({})
    (True, False, False)
    """
    norms = [value for tag, value in measured.items() if tag.startswith("weights/")]
    return bool(norms) and all(math.isfinite(norm) for norm in norms)


def check_weights(policy: Policy, after: str) -> None:
    """Check that the weights are finite.

    Raises:
        NonFiniteError: one is not; ``after`` says when.
    """
    sharded = is_sharded(policy)
    tensors = [p.detach() for p in policy.parameters() if p.is_floating_point()]  # packed weights are integers
    if math.isfinite(total_norm(tensors, sharded=sharded, device=policy.device, norm_type=math.inf)):
        return
    bad = (n for n, p in policy.named_parameters() if not bool(torch.isfinite(local(p)).all()))
    name = next(bad, "a weight of another rank")
    raise NonFiniteError(
        f"{name} is not finite {after}; it was not saved, the last checkpoint is good.\n"
        f"  fix: lower the learning rate, or clip gradients (trainer.gradient_clip_val), and resume"
    )
