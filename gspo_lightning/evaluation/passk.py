"""avg@k and pass@k as torchmetrics: float64 sums and counts add up exactly over ranks and batches."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from gspo_lightning.statistics import samples

__all__ = ["AverageAtK", "PassAtK", "pass_at_k"]


def pass_at_k(correct: Tensor, k: int) -> Tensor:
    """Return [P] float64: unbiased probability that at least one of k responses is correct (arXiv 2107.03374, Eq. 1).

    The formula is :func:`gspo_lightning.statistics.samples.pass_at_k`, the one of ``gspo evaluate``.

    Args:
        correct: [P, n] bool, n responses to each of P prompts.
        k: draws, in [1, n].

    Raises:
        ValueError: not a bool tensor [P, n], or k is not in [1, n].

    >>> pass_at_k(torch.tensor([[True, False, False, False], [False] * 4]), k=2)
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    if correct.ndim != 2 or correct.dtype != torch.bool:
        raise ValueError(f"correct must be bool [P, n], got {correct.dtype} of shape {tuple(correct.shape)}")
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs {k} responses per prompt or more (and k >= 1), got n = {n}")
    right = correct.sum(dim=1).tolist()
    chances = {count: samples.pass_at_k(count, n, k) for count in set(right)}
    return torch.tensor([chances[count] for count in right], dtype=torch.float64, device=correct.device)


class PassAtK(Metric):
    """Mean over prompts of :func:`pass_at_k`. NaN before the first update.

    Args:
        k: draws, at least 1. Every update needs k responses per prompt or more; their number may differ.

    >>> metric = PassAtK(2)
    >>> metric.update(torch.tensor([[True, False, False, False]]))
    >>> metric.update(torch.tensor([[True, False]]))
    >>> float(metric.compute())
    0.75
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: Tensor
    prompts: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be 1 or more, got {k}")
        self.k = k
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("prompts", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, correct: Tensor) -> None:
        """Add prompts.

        Args:
            correct: [P, n] bool; P may be 0.

        Raises:
            ValueError: as :func:`pass_at_k`.
        """
        self.total = self.total + pass_at_k(correct, self.k).sum()
        self.prompts = self.prompts + correct.shape[0]

    def compute(self) -> Tensor:
        """Return the mean over all prompts of all ranks, float64."""
        return self.total / self.prompts

    def extra_repr(self) -> str:
        """Return the settings for the module's repr."""
        return f"k={self.k}"


class AverageAtK(PassAtK):
    """avg@k: mean over prompts of the share of correct responses; with one response per prompt, the accuracy.

    Prompts have equal weight whatever their number of responses, so this is pass@1.

    >>> metric = AverageAtK()
    >>> metric.update(torch.tensor([[True, False, False, False], [True, True, True, True]]))
    >>> float(metric.compute())
    0.625
    """

    def __init__(self) -> None:
        super().__init__(k=1)
