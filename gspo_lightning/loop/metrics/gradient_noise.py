"""Gradient noise: the simple noise scale of a mini-batch, from the gradients of its micro-batches.

McCandlish et al., "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), appendix A.1, for any number of
batches of any sizes. The gradients of the micro-batches exist one after another in any case; a hook on every parameter
reads the norm of each before it is added to the others. No gradient is kept and no backward pass is added.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gspo_lightning.core.distributed import all_sum, rank_and_world
from gspo_lightning.core.types import MicroBatch

HISTORY = 64
"""Number of updates whose estimates are added up: that of a single one is often negative."""


def noise_and_signal(squares: float, whole: float, sizes: tuple[float, float]) -> tuple[float, float]:
    """Estimate a mini-batch gradient's variance and the squared norm of its expectation, both without bias.

    Micro-batch j has n_j of the N rows, and its gradient g_j is the sum of as many independent terms of mean mu and
    covariance S. Then E sum |g_j|^2 = sum n_j^2 |mu|^2 + N tr(S) and E |sum g_j|^2 = N^2 |mu|^2 + N tr(S).

    Args:
        squares: sum of |g_j|^2 over the micro-batches.
        whole: |sum g_j|^2.
        sizes: N and the sum of n_j^2.

    Returns:
        N tr(S) and N^2 |mu|^2; either may be negative.

    >>> noise_and_signal(squares=1.0 + 9.0, whole=16.0, sizes=(2.0, 2.0))  # 1 and 3 on a line, a row each
    (4.0, 12.0)
    """
    rows, squared_sizes = sizes
    determinant = rows**2 - squared_sizes  # of the two equations above
    noise = (squares * rows**2 - whole * squared_sizes) / determinant
    signal = (whole - squares) * rows**2 / determinant
    return noise, signal


def split_groups(parts: Sequence[MicroBatch]) -> bool:
    """True if rows of one group are in two micro-batches, or their groups are unknown.

    The advantages of a group add up to 0, so the gradients of its parts nearly cancel each other: they are large
    without being noise. Group numbers are on the host: nothing waits for the device.
    """
    earlier_groups: set[int] = set()
    for part in parts:
        if part.group_index is None:
            return True
        groups = set(part.group_index)
        if groups & earlier_groups:
            return True
        earlier_groups |= groups
    return False


class GradientNoise:
    """Meter of gradient noise, from the gradients of an update's micro-batches before they are added up.

    Correct on one process and under DDP, where a hook sees a rank's own gradient before it is reduced. If a strategy
    shards the parameters, no hook is called and nothing is measured.

    Args:
        policy: model whose trainable parameters are watched; whole, before a strategy wraps it.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._norms: list[Tensor] = []
        self._sizes: tuple[int, int, int] | None = None
        self._independent = True
        self._history: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.register_hook(self._note)

    def start(self, parts: Sequence[MicroBatch], *, independent: bool = True) -> None:
        """Begin an update on these micro-batches of this rank, perhaps again because memory ran out.

        Args:
            parts: the micro-batches.
            independent: True if their gradients are independent; an update is left out if one rank says False.
        """
        rows = [int(part.response_mask.shape[0]) for part in parts if part.weight > 0]
        self._sizes = (sum(rows), sum(n * n for n in rows), len(rows))
        self._norms = []
        self._independent = independent

    def _note(self, gradient: Tensor) -> None:
        if self._sizes is not None and (self._sizes[2] > 1 or rank_and_world()[1] > 1):
            self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32))

    def finish(self, norm: float, device: torch.device) -> dict[str, float]:
        """Return the noise scale after this update; nothing without a second micro-batch, a signal, or independence.

        Args:
            norm: of the gradient over all ranks, before clipping.
            device: for the collectives.
        """
        sizes = self._sizes
        self._sizes = None
        if sizes is None:
            return {}
        squares = torch.stack(self._norms).double().square().sum() if self._norms else torch.zeros(())
        self._norms = []
        if not self._independent:
            squares = squares * math.nan  # NaN makes every rank skip the update

        # a rank's loss is multiplied by the number of ranks, because DDP takes the mean of gradients
        world = rank_and_world()[1]
        squares = squares.to(device, torch.float64) / world**2
        counts = torch.tensor(sizes, device=device).double()
        square_sum, rows, squared_sizes, micro_batches = all_sum(torch.stack([squares, *counts])).tolist()
        if micro_batches < 2 or not square_sum > 0 or not math.isfinite(square_sum + norm):
            return {}

        # a ratio of sums and not a mean of ratios: the signal of a single update may be 0 or negative
        self._history.append(noise_and_signal(square_sum, norm**2, (rows, squared_sizes)))
        noise = sum(noise for noise, _ in self._history)
        signal = sum(signal for _, signal in self._history)
        return {"update/gradient_noise": noise / signal} if signal > 0 else {}

    def state_dict(self) -> list[list[float]]:
        """Return the history, as primitives only."""
        return [list(pair) for pair in self._history]

    def load_state_dict(self, state: Sequence[Sequence[float]]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self._history = deque(((noise, signal) for noise, signal in state), maxlen=HISTORY)
