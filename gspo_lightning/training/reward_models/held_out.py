"""Held-out results of a reward model: accuracy with an interval, and calibration of its probabilities.

The unit of the interval is the prompt: pairs of one prompt share an answer, or at least a difficulty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gspo_lightning.report.statistics.intervals import Estimate, of_new_problems

_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Calibration bin: pairs with confidence in [``low``, ``high``), their mean confidence and accuracy."""

    low: float
    high: float
    pairs: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Results of a reward model on held-out pairs.

    ``accuracy`` is the share of pairs whose chosen answer has the higher reward; a tie counts one half. ``loss`` is the
    Bradley-Terry loss without its second term (nats per pair), ``margin`` the mean of chosen minus rejected reward,
    ``reward`` and ``spread`` mean and standard deviation over all answers. ``ece`` is the expected calibration error:
    the mean over pairs of |accuracy - confidence| of their bin, where a pair's confidence is sigmoid(|margin|), in ten
    bins of equal width from 0.5 to 1 (Guo et al., arXiv 1706.04599). The 95 % interval of the accuracy takes prompts,
    not pairs, as independent.
    """

    pairs: int
    prompts: int
    accuracy: Estimate
    loss: float
    margin: float
    reward: float
    spread: float
    ece: float
    bins: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the results as numbers, texts and lists only."""
        return asdict(self)

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> HeldOut:
        """Restore the result of :meth:`as_dict`.

        Raises:
            TypeError, KeyError: it is something else.
        """
        accuracy = Estimate(**fields["accuracy"])
        bins = tuple(Bin(**bin_fields) for bin_fields in fields["bins"])
        return cls(**{**fields, "accuracy": accuracy, "bins": bins})


def judge(
    chosen: Sequence[float], rejected: Sequence[float], margins: Sequence[float], prompts: Sequence[int]
) -> HeldOut:
    """Compute the held-out results.

    Args:
        chosen: [N] rewards of the preferred answers.
        rejected: [N] rewards of the others.
        margins: [N] least differences according to the data; in the loss only.
        prompts: [N] the prompt of each pair.

    >>> results = judge([2.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0, 1])
    >>> results.accuracy.value, round(results.ece, 4)  # sure by sigmoid(2) and sigmoid(1); right, wrong
    (0.5, 0.4251)
    """
    chosen_rewards = np.asarray(chosen, np.float64)
    rejected_rewards = np.asarray(rejected, np.float64)
    differences = chosen_rewards - rejected_rewards
    right = np.where(differences == 0, 0.5, differences > 0)
    confidence = 1 / (1 + np.exp(-np.abs(differences)))
    all_rewards = np.concatenate([chosen_rewards, rejected_rewards])
    _, prompt_index = np.unique(np.asarray(prompts), return_inverse=True)
    pairs_by_prompt = np.bincount(prompt_index)
    accuracy_by_prompt = np.bincount(prompt_index, right) / pairs_by_prompt
    losses = np.logaddexp(0.0, -(differences - np.asarray(margins, np.float64)))  # -log sigmoid(difference - margin)
    bins = _bins(confidence, right)
    return HeldOut(
        pairs=len(differences),
        prompts=len(pairs_by_prompt),
        accuracy=of_new_problems(accuracy_by_prompt.tolist(), pairs_by_prompt.tolist()),
        loss=float(losses.mean()),
        margin=float(differences.mean()),
        reward=float(all_rewards.mean()),
        spread=float(all_rewards.std()),
        ece=sum(b.pairs * abs(b.accuracy - b.confidence) for b in bins) / len(differences),
        bins=bins,
    )


def _bins(confidence: np.ndarray, right: np.ndarray) -> tuple[Bin, ...]:
    """Return the bins that hold pairs."""
    edges = np.linspace(0.5, 1.0, _BINS + 1)
    bin_index = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, _BINS - 1)
    bins = []
    for i in range(_BINS):
        inside = bin_index == i
        if inside.any():
            mean_confidence = float(confidence[inside].mean())
            accuracy = float(right[inside].mean())
            bins.append(Bin(float(edges[i]), float(edges[i + 1]), int(inside.sum()), mean_confidence, accuracy))
    return tuple(bins)
