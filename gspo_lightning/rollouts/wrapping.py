"""Base of sources whose tokens come from another source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import SystemPrompt, WeightsOn
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
from gspo_lightning.rollouts.source import RolloutSource


class WrappingSource(RolloutSource):
    """Source that lets another one, :attr:`source`, speak in turns; it renders messages as ``data`` says.

    Args:
        source: must be able to continue a response; None: ``GroupedSampler``.

    Raises:
        UserError: it cannot.
    """

    system_prompt: SystemPrompt | None = None
    chat_template_kwargs: Mapping[str, Any] = {}

    def __init__(self, source: RolloutSource | None) -> None:
        self._use_source(source if source is not None else GroupedSampler())
        if type(self.source).extend is RolloutSource.extend:
            raise UserError(
                f"{type(self).__name__}.source",
                f"is {type(self.source).__name__}, which cannot continue a partial response",
                fix="use GroupedSampler, TransformersGenerate or VLLMServer",
            )

    @override
    def local(self) -> RolloutSource | None:
        return self.source.local()

    @override
    def reduce_batch(self) -> int:
        return self.source.reduce_batch()

    @override
    def open(self, longest: int) -> None:
        self.source.open(longest)

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that hold the weights: those of the source."""
        return self.source.weights_on

    @override
    def sync_weights(self, policy: Policy, version: int) -> None:
        self.source.sync_weights(policy, version)

    @override
    def update_weights_in_flight(self, policy: Policy, version: int) -> None:
        self.source.update_weights_in_flight(policy, version)

    @override
    def sleep(self) -> None:
        self.source.sleep()

    @override
    def measured(self) -> dict[str, float]:
        return self.source.measured()

    @override
    def close(self) -> None:
        self.source.close()

    def _use_source(self, source: RolloutSource) -> None:
        self.source, self.updates_in_flight = source, source.updates_in_flight
        self.keeps_weights = source.keeps_weights
        self.reads_pictures, self.picture_families = source.reads_pictures, source.picture_families
