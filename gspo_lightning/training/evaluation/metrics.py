"""Metrics of an evaluation: avg@k and pass@k reduced over ranks, reward, length."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import MaxMetric, MeanMetric, Metric, MinMetric

from gspo_lightning.core.distributed import all_gathered
from gspo_lightning.core.errors import UserError, counted
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.core.types import Rollout
from gspo_lightning.report.statistics import samples
from gspo_lightning.training.evaluation.evaluation_settings import Evaluation

log = logging.getLogger(__name__)


def pass_at_k(correct: Tensor, k: int) -> Tensor:
    """Return [P] float64: unbiased probability that at least one of k responses is correct (arXiv 2107.03374, Eq. 1).

    The formula is :func:`gspo_lightning.report.statistics.samples.pass_at_k`, the one of ``gspo evaluate``.

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
    counts = correct.sum(dim=1).tolist()
    chances = {count: samples.pass_at_k(count, n, k) for count in set(counts)}  # at most n + 1 different ones
    return torch.tensor([chances[count] for count in counts], dtype=torch.float64, device=correct.device)


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


class StandardErrorAtK(AverageAtK):
    """Standard error of :class:`AverageAtK`: the spread of the prompts' shares, divided by the root of their number.

    >>> metric = StandardErrorAtK()
    >>> metric.update(torch.tensor([[True, True], [True, False], [False, False], [True, False]]))
    >>> round(float(metric.compute()), 4)  # shares 1, 1/2, 0, 1/2: variance 1/8, of four prompts
    0.1768
    """

    higher_is_better = False
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("squares", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, correct: Tensor) -> None:
        """Add prompts: [P, n] bool."""
        super().update(correct)
        self.squares = self.squares + correct.double().mean(1).square().sum()

    def compute(self) -> Tensor:
        """Return the standard error over all prompts of all ranks, float64."""
        mean = super().compute()
        variance = self.squares / self.prompts - mean.square()
        return (variance.clamp(min=0.0) / self.prompts).sqrt()  # rounding may leave a variance just below 0


class Score(NamedTuple):
    """Score of a held-out prompt in one evaluation."""

    prompt: int
    """The prompt's id."""
    accuracy: float | None
    """Share of its answers that are correct; None if one of them has no score."""
    reward: float | None
    """Mean reward of its answers; None if one of them has none."""

    @classmethod
    def of(cls, group: Sequence[Rollout], verdicts: Sequence[float | None]) -> Score:
        """Return the score of a group, whose accuracy rewards are ``verdicts``."""
        right = [is_right(verdict) for verdict in verdicts if verdict is not None]
        rewards = [rollout.reward for rollout in group if rollout.reward is not None]
        accuracy = sum(right) / len(right) if right and len(right) == len(verdicts) else None
        reward = sum(rewards) / len(rewards) if rewards and len(rewards) == len(group) else None
        return cls(int(group[0].prompt.id), accuracy, reward)


class EvaluationMetrics(nn.Module):
    """torchmetrics of one evaluation; they reduce over ranks when computed."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = nn.ModuleDict()
        self.by_source = nn.ModuleDict()
        self.sources: list[str] = []
        self.examples: list[Rollout] = []
        self.scores: list[Score] = []
        self._accuracy_reward = ""
        self._missing: list[str] = []
        """Reason for each missing score of the accuracy reward."""

    def start(self, evaluation: Evaluation, device: torch.device, sources: Sequence[str] = ()) -> None:
        """Reset for an evaluation with these settings, of prompts from these sources."""
        self.sources = list(sources)
        self.by_source = nn.ModuleDict()
        for number in range(len(sources)):  # names may hold characters that keys may not
            self.by_source[f"accuracy {number}"] = AverageAtK()
            self.by_source[f"reward {number}"] = MeanMetric()
        self.by_source.to(device)
        self.metrics = nn.ModuleDict({"accuracy": AverageAtK(), "accuracy_standard_error": StandardErrorAtK()})
        for k in evaluation.pass_at:
            self.metrics[f"pass@{k}"] = PassAtK(k)
        self.metrics["lowest_score"] = MinMetric()
        self.metrics["highest_score"] = MaxMetric()
        for name in ("reward", "response_length", "terminated"):
            self.metrics[name] = MeanMetric()
        self.metrics.to(device)
        self.examples = []
        self.scores = []
        self._missing = []

    def update(self, groups: Sequence[Sequence[Rollout]], accuracy_reward: str) -> None:
        """Add scored answers to some prompts; a response is correct if its accuracy reward is at least 1.

        If that reward does not apply to the record, the first applicable one decides. A prompt with a missing score is
        left out of the accuracy (it is never a silent 0).
        """
        verdicts = [[rollout.verdict(accuracy_reward) for rollout in group] for group in groups]
        correct = [[is_right(v) for v in row if v is not None] for row in verdicts if None not in row]
        if len(correct) < len(groups):
            log.warning("evaluation: %d of %d prompts have a missing score", len(groups) - len(correct), len(groups))
        for name in self.metrics:
            if correct and name.startswith(("accuracy", "pass@")):
                self._add(name, torch.tensor(correct))
        scores = [value for row in verdicts for value in row if value is not None]
        if scores:
            self._add("lowest_score", torch.tensor(scores))
            self._add("highest_score", torch.tensor(scores))
        rollouts = [rollout for group in groups for rollout in group]
        self._accuracy_reward = accuracy_reward
        self._missing += [r.lost or r.missing for r in rollouts if r.verdict(accuracy_reward) is None]
        rewards = [r.reward for r in rollouts if r.reward is not None]
        terminated = [float(not r.truncated and not r.lost) for r in rollouts]
        self.metrics["reward"].update(torch.tensor(rewards, dtype=torch.float64))  # type: ignore[operator]
        self.metrics["response_length"].update(torch.tensor([float(r.length) for r in rollouts]))  # type: ignore[operator]
        self.metrics["terminated"].update(torch.tensor(terminated))  # type: ignore[operator]
        for group, row in zip(groups, verdicts, strict=True):
            self.examples.append(group[0])
            self.scores.append(Score.of(group, row))
            source = group[0].prompt.columns.get("source")
            if source in self.sources:
                self._count_for(self.sources.index(source), group, row)

    def _add(self, name: str, values: Tensor) -> None:
        metric = self.metrics[name]
        metric.update(values.to(str(metric.device)))  # type: ignore[operator]

    def _count_for(self, number: int, group: Sequence[Rollout], verdicts: Sequence[float | None]) -> None:
        """Count a prompt's answers for the source of this number."""
        correct = [is_right(verdict) for verdict in verdicts if verdict is not None]
        rewards = [rollout.reward for rollout in group if rollout.reward is not None]
        accuracy = self.by_source[f"accuracy {number}"]
        mean_reward = self.by_source[f"reward {number}"]
        if len(correct) == len(verdicts):
            accuracy.update(torch.tensor([correct]).to(str(accuracy.device)))  # type: ignore[operator]
        mean_reward.update(torch.tensor(rewards, dtype=torch.float64))  # type: ignore[operator]

    def compute(self) -> dict[str, float]:
        """Return ``val/<name>`` -> value, over all ranks.

        Raises:
            UserError: no prompt of any rank has all its scores, so the accuracy is unknown.
        """
        values = {f"val/{name}": float(metric.compute()) for name, metric in self.metrics.items()}  # type: ignore[operator]
        if math.isnan(values["val/accuracy"]):
            raise UserError(
                "data.evaluation.accuracy_reward",
                f"{self._accuracy_reward!r} scored no held-out prompt completely, so there is no accuracy: "
                f"{counted(all_gathered(self._missing))}",
                fix="name the reward that judges held-out answers, or correct it",
            )
        for key, metric in self.by_source.items():
            name, number = key.split()
            value = float(metric.compute())  # type: ignore[operator]
            if not math.isnan(value):
                values[f"val/source/{self.sources[int(number)]}/{name}"] = value
        return values
