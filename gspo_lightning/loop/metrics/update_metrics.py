"""Update metrics: measurements of an update besides the objective's own sums, at the level that a run asks for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from torch import nn

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.gradient_noise import GradientNoise, split_groups
from gspo_lightning.loop.metrics.parameters import ParameterMetrics
from gspo_lightning.loop.metrics.ratios import by_mini_batch, ratio_histograms, ratio_scalars
from gspo_lightning.loop.metrics.sums import Level, MetricSums, ratio_percentiles
from gspo_lightning.loop.metrics.tokens import TokenValues

HISTORY = 64
"""Number of updates whose median gradient norm a new one is compared with."""


class UpdateMetrics:
    """Scalars and histograms of one update after another; tensors are read, never written.

    Args:
        level: ``full``; ``basic``: no distributions by sign, no token ratios, nothing about the weights; ``off``: loss,
            gradient norm and rewards only.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self.histograms: dict[str, list[float]] = {}
        """Histograms of the last update: tag -> counts over :data:`gspo_lightning.loop.metrics.sums.RATIO_EDGES`."""
        self.tokens: list[dict[str, Any]] = []
        """Recorded rows of the last update (:meth:`gspo_lightning.loop.metrics.tokens.TokenValues.rows`)."""
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._parameters: ParameterMetrics | None = None
        self._noise: GradientNoise | None = None
        self._noise_before: list[list[float]] = []

    def watch(self, policy: nn.Module) -> None:
        """Attach to the whole model, once, before a strategy shards it."""
        if self.level == "full":
            self._parameters = ParameterMetrics(policy)
            self._noise = GradientNoise(policy)
            self._noise.load_state_dict(self._noise_before)

    def sums(
        self, parts: Sequence[MicroBatch] = (), recorded: Mapping[int, Mapping[str, Any]] | None = None
    ) -> MetricSums:
        """Return an empty accumulator for the micro-batches of an update.

        Args:
            parts: this rank's micro-batches, if their gradients are to be compared; none if rows are grouped by length.
            recorded: position in the mini-batch -> description, of the rows whose tokens are recorded.
        """
        if self._noise is not None and parts:
            self._noise.start(parts, independent=not split_groups([part for part in parts if part.weight > 0]))
        return MetricSums(self.level, TokenValues(recorded) if recorded else None)

    def of_ratios(
        self, scalars: Mapping[str, float], vectors: Mapping[str, Sequence[float]], place: int
    ) -> dict[str, float]:
        """Return percentiles and values by mini-batch; also keep the histograms.

        Args:
            scalars: scalars of this update so far.
            vectors: the reduced vectors of :meth:`sums`.
            place: position of the mini-batch in its iteration, from 0.
        """
        if self.level == "off":
            return {}
        self.histograms = {"ratio/histogram": list(vectors["ratio"])}
        ratios = ratio_percentiles(vectors["ratio"])
        if self.level == "full":
            self.histograms |= ratio_histograms(vectors)
            ratios |= ratio_scalars(vectors)
            ratios |= by_mini_batch(scalars, place)
        return ratios

    def before_step(self, policy: nn.Module, gradient_norm: float) -> dict[str, float]:
        """Return the gradient norm relative to earlier updates; remember the weights."""
        if self.level == "off":
            return {}
        noise = {}
        if self._parameters is not None and self._noise is not None:
            self._parameters.before_step(policy)
            noise = self._noise.finish(gradient_norm, next(policy.parameters()).device)
        usual = median(self._norms) if self._norms else gradient_norm
        if 0 < gradient_norm < math.inf:  # an update with nothing to learn says nothing about what is usual
            self._norms.append(gradient_norm)
        return {"optim/gradient_spike": gradient_norm / usual if usual > 0 else 1.0, **noise}

    def after_step(self, policy: nn.Module) -> dict[str, float]:
        """Return how the update changed the weights."""
        return self._parameters.after_step(policy) if self._parameters is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as primitives only."""
        return {"norms": list(self._norms), "noise": self._noise.state_dict() if self._noise is not None else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self._norms = deque(state.get("norms", ()), maxlen=HISTORY)
        self._noise_before = state.get("noise", [])
        if self._noise is not None:
            self._noise.load_state_dict(self._noise_before)
