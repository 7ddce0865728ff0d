"""Evaluate suites during training, with the code of ``gspo evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gspo_lightning.core.distributed import all_gather_objects, fail_together, rank_and_world
from gspo_lightning.core.types import SystemPrompt
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import RewardRunner
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.training.evaluation.answering import answers_of
from gspo_lightning.training.suites.judging import judge
from gspo_lightning.training.suites.metrics import Graded, measure
from gspo_lightning.training.suites.problems import Problem, read_problems
from gspo_lightning.training.suites.suite import Suite, load_suite


class SuiteEvaluations:
    """Suites with their problems, answered by the policy of a run; ranks share the problems.

    Args:
        names: names of shipped suites, or YAML files; ``NAME:WINDOW`` for a window of dates.
        workers: processes that grade answers; None takes all cores but one.
        system_prompt: for suites without one.
        chat_template_kwargs: for every prompt.
    """

    def __init__(
        self,
        names: Sequence[str],
        workers: int | None = None,
        system_prompt: SystemPrompt | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.workers = workers
        self.system_prompt = system_prompt
        self.template_kwargs = dict(chat_template_kwargs or {})
        self._read: list[tuple[Suite, list[Problem]]] = []

    def prepare(self) -> None:
        """Read suites and problems, before training starts.

        Raises:
            UserError: a suite or its data are missing or malformed.
        """
        if self._read:
            return
        for name in self.names:
            file, _, window = name.partition(":")
            suite = load_suite(file)
            self._read.append((suite, read_problems(suite, None, window)))

    def measure(
        self,
        policy: Policy,
        source: RolloutSource,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        version: int = 0,
    ) -> dict[str, float]:
        """Return ``suite/<name>/<metric>`` -> value over all ranks' problems; see :func:`answers_of`. A collective."""
        self.prepare()
        training = policy.training
        policy.eval()
        metrics: dict[str, float] = {}
        try:
            for suite, problems in self._read:
                metrics |= self._measure(policy, source, suite, problems, context, version)
        finally:
            policy.train(training)
        return metrics

    def _measure(
        self,
        policy: Policy,
        source: RolloutSource,
        suite: Suite,
        problems: Sequence[Problem],
        context: Callable[[], AbstractContextManager[Any]],
        version: int,
    ) -> dict[str, float]:
        rank, world = rank_and_world()
        requests = [(p, range(suite.samples) if i % world == rank else ()) for i, p in enumerate(problems)]
        graded: dict[str, list[Graded]] = {}
        with fail_together(), RewardRunner({"answer": suite.reward}, num_workers=self.workers) as runner:
            answers = answers_of(
                policy,
                source,
                suite,
                requests,
                system_prompt=self.system_prompt,
                chat_template_kwargs=self.template_kwargs,
                context=context,
                version=version,
            )
            for verdicts in judge(suite, {p.id: p for p in problems}, answers, runner):
                for verdict in verdicts:
                    if verdict.value is not None:  # else it is missing, and counts nowhere
                        graded.setdefault(verdict.id, []).append(Graded.of(verdict))
        of_all_ranks: dict[str, list[Graded]] = {}
        for of_rank in all_gather_objects(graded):
            of_all_ranks |= of_rank  # no two ranks have answers to the same problem
        metrics = measure(suite, problems, of_all_ranks)
        return {f"suite/{suite.name}/{name}": metric.new_problems.value for name, metric in metrics.items()}
