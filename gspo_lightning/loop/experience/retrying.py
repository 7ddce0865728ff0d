"""Retries of a rollout source: after transient failures, and with fewer responses after out-of-memory errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gspo_lightning.core.errors import InfrastructureError, first_line
from gspo_lightning.core.types import Prompt, Rollout, WeightsOn
from gspo_lightning.policy.packing.memory import empty_cache, is_out_of_memory
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.contract import check_pieces
from gspo_lightning.rollouts.source import OnGroup

log = logging.getLogger(__name__)

T = TypeVar("T")


class RetryingSource:
    """Wrapper that retries a source when its infrastructure fails.

    Draws are counter-based: a retry gives the same responses. A config cannot name this class.

    Args:
        source: the wrapped source.
        retries: attempts after the first.
        wait_s: seconds before the first retry; each further one waits four times longer.
    """

    on_group: OnGroup | None = None

    def __init__(self, source: RolloutSource, retries: int, wait_s: float) -> None:
        self.source = source
        self.retries = retries
        self.wait_s = wait_s

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that hold the weights: those of the source."""
        return self.source.weights_on

    def sync_weights(self, policy: Policy, version: int) -> None:
        """Send weights to the source, with retries.

        Raises:
            InfrastructureError: every attempt failed.
        """
        self._call(lambda: self.source.sync_weights(policy, version))

    @property
    def updates_in_flight(self) -> bool:
        """True if the source takes new weights in the middle of a call."""
        return self.source.updates_in_flight

    def update_weights_in_flight(self, policy: Policy, version: int) -> None:
        """Send weights in the middle of a call, without retries; rollouts continue if that fails."""
        self.source.update_weights_in_flight(policy, version)

    def sleep(self) -> None:
        """Release the source's memory for training."""
        self.source.sleep()

    def measured(self) -> dict[str, float]:
        """Return the source's measurements since the last call."""
        return self.source.measured()

    def generate(self, policy: Policy, prompts: Sequence[Prompt] = (), **options: Any) -> list[list[Rollout]]:
        """Generate groups, with retries.

        Raises:
            InfrastructureError: every attempt failed.
        """
        self.source.on_group = self.on_group
        try:
            return self._fit(policy, lambda: self.source.generate(policy, prompts, **options))
        finally:
            self.source.on_group = None

    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        """Continue responses, with retries.

        Raises:
            InfrastructureError: every attempt failed.
        """
        pieces = self._fit(policy, lambda: self.source.extend(policy, beginnings, **options))
        return check_pieces(self.source, pieces, beginnings)

    def _fit(self, policy: Policy, call: Callable[[], T]) -> T:
        """Retry with fewer responses at a time after an out-of-memory error.

        Raises:
            InfrastructureError: a single group does not fit.
        """
        while True:
            try:
                return self._call(call)
            except (RuntimeError, MemoryError) as error:
                if policy.in_lockstep or not is_out_of_memory(error):
                    raise
                reason = first_line(error)[:200]
            # outside the except clause: the exception holds the tensors of the attempt
            max_rows = self.source.reduce_batch()
            problem = f"{type(self.source).__name__} is out of memory ({reason})"
            if not max_rows:
                raise InfrastructureError(
                    f"{problem}\n  fix: lower data.max_response_tokens or data.group_size, or data.rollouts.max_rows "
                    "where the source has it"
                )
            log.warning("%s; again, and from now on with at most %d responses at a time", problem, max_rows)
            empty_cache()

    def _call(self, call: Callable[[], T]) -> T:
        name = type(self.source).__name__
        for attempt in range(self.retries + 1):
            try:
                return call()
            except (InfrastructureError, OSError) as error:  # connections and timeouts are OSErrors
                last_error = error
                if attempt < self.retries:
                    wait_s = self.wait_s * 4**attempt
                    log.warning("%s failed (%s); trying again in %g s", name, error, wait_s)
                    time.sleep(wait_s)
        raise InfrastructureError(
            f"{name} failed {self.retries + 1} times, last: {last_error}\n"
            f"  fix: restore it, then resume with --ckpt_path last; or raise data.rollout_retries"
        ) from last_error
