"""Evaluate a run on held-out prompts: gather the policy, grade answers, keep the history of results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch

from gspo_lightning.core.types import Prompt, Rollout, SamplingParams, WeightsOn
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore, Groups
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.training.evaluation.evaluation_settings import Evaluation
from gspo_lightning.training.evaluation.metrics import EvaluationMetrics, Score


class Evaluator:
    """Evaluator of held-out prompts; gathers the policy once for a whole evaluation."""

    def __init__(self) -> None:
        self.history: list[tuple[int, dict[str, float]]] = []
        """(optimizer steps, ``val/<name>`` -> value) for every evaluation of the run."""
        self._metrics = EvaluationMetrics()
        self._policy: Policy | None = None
        self._open = contextlib.ExitStack()

    @property
    def last(self) -> dict[str, float]:
        """Results of the last evaluation; empty before the first one."""
        return self.history[-1][1] if self.history else {}

    @property
    def examples(self) -> Sequence[Rollout]:
        """First answer to each prompt of the last evaluation on this rank."""
        return self._metrics.examples

    @property
    def scores(self) -> Sequence[Score]:
        """Score of each prompt of the last evaluation on this rank."""
        return self._metrics.scores

    @property
    def policy(self) -> Policy:
        """The plain policy that answers, between :meth:`open` and :meth:`close`."""
        if self._policy is None:
            raise RuntimeError("no policy is open for an evaluation")
        return self._policy

    def open(self, policy: Policy, weights_on: WeightsOn = WeightsOn.EVERY_RANK) -> Policy:
        """Gather the policy once, because ranks have different numbers of prompts; return the plain policy.

        A collective for sharded policies.
        """
        self._open = contextlib.ExitStack()
        self._policy = self._open.enter_context(gathered(policy, weights_on))
        return self._policy

    def start(self, settings: Evaluation, device: torch.device, sources: Sequence[str] = ()) -> None:
        """Start new metrics, also for each of these sources."""
        self._metrics.start(settings, device, sources)

    def answer(
        self, prompts: Sequence[Prompt], generate_and_score: GenerateAndScore, sampling: SamplingParams, version: int
    ) -> Groups:
        """Return scored responses to some prompts.

        Args:
            prompts: this rank's next prompts.
            generate_and_score: samples and scores.
            sampling: sampling parameters.
            version: optimizer steps taken to reach the weights.
        """
        groups, _ = generate_and_score(self.policy, prompts, sampling, iteration=0, version=version)
        return groups

    def count(self, groups: Groups, accuracy_reward: str) -> None:
        """Update the metrics; ``accuracy_reward`` decides which responses are correct."""
        self._metrics.update(groups, accuracy_reward)

    def finish(self, step: int, suites: Mapping[str, float]) -> dict[str, float]:
        """Return the results over all ranks and store them in the history under ``step``.

        Args:
            step: optimizer steps so far.
            suites: results of the suites, added to the metrics.

        Raises:
            UserError: no prompt of any rank has all its scores.
        """
        self.close()
        self.history.append((step, {**self._metrics.compute(), **suites}))
        return self.last

    def close(self) -> None:
        """Release the gathered weights."""
        self._open.close()
        self._policy = None
